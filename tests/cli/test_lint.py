"""scripts/check_layers.py: one breach of each kind, planted in a small tree, is seen and named."""
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "check_layers.py"

CLEAN = {
    "src/base/arena.h": "#ifndef DMUON_BASE_ARENA_H\n#define DMUON_BASE_ARENA_H\n#endif\n",
    "src/base/arena.c": '#include "base/arena.h"\n\n#include <stdlib.h>\nvoid *get(void) {\n    return malloc(1);\n}\n',
    "src/base/json.c": "#include <cjson/cJSON.h>\n",
    "src/config/parse.c": '#include <yaml.h>\n\n#include "base/arena.h"\n',
    "src/comm/world.c": '#include <mpi.h>\n#ifdef DM_CUDA\n#endif\n#include "device/device.h"\n',
    "src/comm/nccl.c": "#include <nccl.h>\n",
    "src/device/device.h": "#ifndef DMUON_DEVICE_DEVICE_H\n#define DMUON_DEVICE_DEVICE_H\n#endif\n",
    "src/device/cuda.c": "#include <cuda_runtime.h>\n#if DM_CUDA\n#endif\n",
    "src/device/gemm_cuda.c": "#include <cublasLt.h>\n",
    "src/optim/muon.c": '#include "kernels/exact_math.h"\n#include "base/arena.h"\n',
    "src/train/step.c": '/* #include "cli/args.h"\n free(x); */\n#include "parallel/plan.h"\n#include "train/loop.h"\n'
                        'static void f(Pool *pool) {\n    pool->free(1); // malloc(2)\n    say("calloc(3)", \'"\');\n'
                        "    heap_free(pool);\n}\n",
    "src/parallel/plan.h": "#ifndef DMUON_PARALLEL_PLAN_H\n#define DMUON_PARALLEL_PLAN_H\n#endif\n",
    "kernels/exact_math.h": "/* shared */\n#ifndef DMUON_KERNELS_EXACT_MATH_H\n#define DMUON_KERNELS_EXACT_MATH_H\n"
                            "#ifdef __CUDACC__\n#endif\n#endif\n",
    "kernels/cpu/isa.h": "#ifndef DMUON_KERNELS_CPU_ISA_H\n#define DMUON_KERNELS_CPU_ISA_H\n#endif\n",
    "kernels/cpu/rope.c": '#include <math.h>\n\n#include "kernels/exact_math.h"\n#include "kernels/cpu/isa.h"\n',
    "kernels/cuda/rope.cu": '#include <cuda_runtime.h>\n#include "kernels/kernels.h"\n',
}

# What is planted: file, text, line of the breach, words of the message.
BREACHES = {
    "a room to the right": ("src/base/a.c", '\n#include "train/step.h"\n', 2, "train is a room to its right"),
    "a neighbour": ("src/model/a.c", '#include "optim/muon.h"\n', 1, "optim is a neighbour in its column"),
    "another neighbour": ("src/metrics/a.c", '#  include "checkpoint/set.h"\n', 1, "checkpoint is a neighbour"),
    "no path from src": ("src/base/a.c", '#include "arena.h"\n', 1, '"arena.h" is not a path from src/'),
    "an unknown target": ("src/cli/a.c", '#include "utils/x.h"\n', 1, "into a room of the table"),
    "an unknown room": ("src/utils/a.c", "int x;\n", 1, "utils is not a room"),
    "kernels from a strange room": ("src/data/a.c", '#include "kernels/kernels.h"\n', 1, "call kernels"),
    "a kernel that knows the engine": ("kernels/cpu/a.c", '#include "base/arena.h"\n', 1, "includes only kernels/"),
    "a kernel header that knows the engine": ("kernels/cuda/a.cu", '#include "tensor/ops.h"\n', 1, "only kernels/"),
    "mpi outside comm": ("src/train/a.c", "#include <mpi.h>\n", 1, "mpi.h is met only in src/comm/"),
    "yaml outside parse": ("src/config/schema.c", "#include <yaml.h>\n", 1, "met only in src/config/parse.c"),
    "yaml in another room": ("src/model/a.c", "#include <yaml.h>\n", 1, "met only in src/config/parse.c"),
    "cJSON outside json.c": ("src/base/a.c", "#include <cjson/cJSON.h>\n", 1, "met only in src/base/json.c"),
    "cJSON by its short name": ("src/checkpoint/a.c", '#include "cJSON.h"\n', 1, "met only in src/base/json.c"),
    "nccl outside nccl.c": ("src/comm/comm.c", "#include <nccl.h>\n", 1, "met only in src/comm/nccl.c"),
    "cuda outside cuda.c": ("src/device/device.c", "#include <cuda_runtime.h>\n", 1, "met only in src/device/cuda.c"),
    "cuda in a cpu kernel": ("kernels/cpu/a.c", "#include <cuda_bf16.h>\n", 1, "and kernels/cuda/"),
    "cublas outside gemm_cuda.c": ("src/device/cuda2.c", "#include <cublasLt.h>\n", 1, "src/device/gemm_cuda.c"),
    "malloc": ("src/data/a.c", "void f(void) {\n    g(malloc(1));\n}\n", 2, "malloc() is called outside src/base"),
    "free": ("src/data/a.c", "void f(void) {\n\n    free (x);\n}\n", 3, "free() is called outside src/base"),
    "calloc in a kernel": ("kernels/cpu/a.c", "int *x = calloc(1, 2);\n", 1, "calloc() is called"),
    "realloc": ("src/cli/a.c", "int *x = realloc(y, 2);\n", 1, "realloc() is called"),
    "ifdef on CUDA": ("src/model/a.c", "int x;\n#ifdef DM_CUDA\n#endif\n", 2, "a condition on CUDA"),
    "if on CUDA": ("src/train/a.c", "#if defined(CUDA) && 1\n#endif\n", 1, "a condition on CUDA"),
    "a guard of another name": ("src/mesh/a.h", "/* text */\n#ifndef MESH_A_H\n#define MESH_A_H\n#endif\n", 2,
                                "must be DMUON_MESH_A_H"),
    "a guard that guards nothing": ("src/mesh/a.h", "#ifndef DMUON_MESH_A_H\n#define DMUON_MESH_B_H\n#endif\n", 1,
                                    "must be DMUON_MESH_A_H"),
    "no guard": ("src/mesh/a.h", "#pragma once\n", 1, "must be DMUON_MESH_A_H"),
    "an empty header": ("src/mesh/a.h", "int x;\n", 1, "must be DMUON_MESH_A_H"),
}


def plant(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def check(root: Path, *options: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(SCRIPT), "--root", str(root), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_clean_tree_passes_in_silence(tmp_path):
    plant(tmp_path, CLEAN)
    result = check(tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize("kind", BREACHES)
def test_a_planted_breach_is_the_only_line_and_the_exit_code(tmp_path, kind):
    path, text, line, words = BREACHES[kind]
    plant(tmp_path, CLEAN | {path: text})
    result = check(tmp_path)
    assert result.returncode == 1
    assert len(result.stdout.splitlines()) == 1, result.stdout
    assert result.stdout.startswith(f"{path}:{line}: ")
    assert words in result.stdout


def test_long_places_are_notes_and_do_not_fail(tmp_path):
    body = "    x();\n" * 49
    plant(tmp_path, CLEAN | {
        "src/mesh/a.c": f"static int long_one(int a,\n                    int b) {{\n{body}}}\n\n"
                        f"int short_one(void) {{\n{body[:-9]}}}\n\nstatic const int t[] = {{\n{body}}};\n",
        "src/mesh/b.c": "int x;\n" * 401,
        "src/mesh/c.c": "int x;\n" * 400,
    })
    result = check(tmp_path, "--list")
    assert result.returncode == 0
    assert result.stdout.splitlines() == [
        "note: src/mesh/a.c:1: long_one has 52 lines",
        "note: src/mesh/b.c:1: the file has 401 lines, more than 400",
    ]
    assert check(tmp_path).stdout == ""


def test_a_root_without_sources_is_a_usage_error(tmp_path):
    assert check(tmp_path).returncode == 2


def test_the_table_is_that_of_the_tree():
    """Every room of src/ is in the table, so that no room goes unchecked."""
    root = SCRIPT.parent.parent
    table = SCRIPT.read_text().split("COLUMNS = [")[1].split("\n]\n")[0]
    rooms = set(re.findall(r'[{ ]"(\w+)": "', table))
    assert {path.name for path in (root / "src").iterdir() if path.is_dir()} <= rooms
    assert {"base", "config", "device", "tensor", "comm", "mesh", "model", "optim", "data", "parallel", "checkpoint",
            "metrics", "train", "cli"} == rooms
