"""The CUDA kernels alone, on the stand-ins, against the CPU's bits; and what the compiler made of them."""
import re
import shlex
import subprocess

import pytest

from helpers import SLOW
from standin import BUILD, LIBRARIES, ROOT, environment, first_seed, needs_build

pytestmark = needs_build

SEED = first_seed()


@pytest.mark.parametrize("program", ["test_kernels", "test_products"])
@pytest.mark.parametrize("seed", [0, SEED, SEED + 1])
def test_every_kernel_has_the_bits_of_the_cpu(program, seed):
    done = subprocess.run([BUILD / "cuda" / program], env=environment(seed), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"seed {seed}:\n{done.stdout}{done.stderr}"


def exported(*arguments):
    names = subprocess.run(["nm", "--defined-only", *map(str, arguments)], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r" [tTW] (_Z\d+(?!_|\d)\w*_kernel\w*)$", names, re.M))


def test_every_kernel_has_an_emulation():
    kernels = exported(*sorted((BUILD / "kernels" / "cuda").glob("*.o")))
    assert len(kernels) >= 50
    assert kernels - exported("-D", LIBRARIES / "libkernels_emu.so") == set()


def compile_command(source):
    """How make compiles it, but for the list of what it depends on, which is make's."""
    target = f"{BUILD}/kernels/cuda/{source}.o"
    make = ["make", "-n", "-B", "V=1", "CUDA=1", f"BUILD={BUILD}", target]
    lines = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    (line,) = [line for line in lines if f"-c kernels/cuda/{source}.cu" in line]
    words = shlex.split(line)
    words[words.index("-o") + 1] = None
    return [w for before, w in zip([None, *words], words) if w not in ("-MMD", "-MP", "-MF") and before != "-MF"]


def compile_to(source, output, *more):
    words = [str(output) if word is None else word for word in compile_command(source)]
    return subprocess.run([*words, *more], cwd=ROOT, capture_output=True, text=True, check=True).stderr


def slow(source):
    return pytest.param(source, marks=pytest.mark.skipif(not SLOW, reason="compiles for a minute: DM_SLOW=1"))


@pytest.mark.parametrize("source", ["gemm", "newton_schulz", "attention_rows", slow("attention_forward"), slow("attention_backward")])
def test_no_register_is_spilled(source, tmp_path):
    report = compile_to(source, tmp_path / "kernels.o", "-Xptxas", "-v")
    kernels = re.findall(r"Compiling entry function '(\w+)' for 'sm_(\d+)'", report)
    assert {arch for _, arch in kernels} == {"80", "90"}
    frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", report)
    assert len(frames) == len(kernels)
    assert [k for k, frame in zip(kernels, frames) if frame != ("0", "0", "0")] == []


@pytest.mark.parametrize("source", ["gemm", "cross_entropy"])
def test_arithmetic_in_ptx_is_what_the_source_says(source, tmp_path):
    words = compile_command(source)
    kept = [w for i, w in enumerate(words) if w != "-c" and w != "-gencode" and words[i - 1] != "-gencode"]
    output = tmp_path / "kernels.ptx"
    command = [str(output) if word is None else word for word in kept] + ["--ptx", "-arch=compute_90"]
    subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    text = output.read_text()
    assert not re.search(r"\.ftz|\.approx|mad\.rn\.f", text)
    if source == "gemm":
        for entry in re.split(r"\.entry ", text)[1:]:
            assert "fma.rn.f32" in entry and "ld.shared.v4.f32" in entry and re.search(r"ld\.global(\.nc)?\.v4\.f32", entry)
