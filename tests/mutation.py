"""Programs with a fault: one source file with one piece of text replaced, compiled alone as make would and linked in front of the
library. The engine itself holds no test code."""
import functools
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def same_build():
    """The options of make that the tests run under."""
    return tuple(f"{name}={os.environ[name]}" for name in ("CUDA", "DEBUG", "SAN") if name in os.environ)


@functools.cache
def commands(*arguments):
    """(compile command of each source, link command of each program), as make would run them."""
    done = subprocess.run(["make", "-n", "-B", "V=1", "all", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True,
                          env={k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")})
    compile_of, link_of = {}, {}
    for words in map(str.split, done.stdout.splitlines()):
        if "-c" in words and "-o" in words:
            compile_of[words[words.index("-c") + 1]] = words
        elif any(word.endswith("/libdmuon.a") for word in words) and "-o" in words:
            link_of[Path(words[words.index("-o") + 1]).name] = words
    return compile_of, link_of


def without(words, *flags):
    return [w for w in words if w not in flags]


def compile_changed(name, change, scratch, *arguments):
    """The object of a source with one piece of text replaced."""
    file, old, new = change
    text = (ROOT / file).read_text(encoding="utf-8")
    found = text.count(old)
    assert found == 1, f"{name}: the text to replace stands {found} times in {file}, once was expected:\n{old}"
    source = Path(scratch) / Path(file).name
    source.write_text(text.replace(old, new), encoding="utf-8")
    obj = source.with_suffix(".o")
    words = [str(source) if w == file else w for w in without(commands(*arguments)[0][file], "-MMD", "-MP", "-Werror")]
    words[words.index("-o") + 1] = str(obj)
    subprocess.run([*words, "-w"], cwd=ROOT, check=True)
    return str(obj)


def build_changed(name, changes, scratch, *arguments, program="dmuon-train"):
    """The program with the fault."""
    objects = [compile_changed(name, change, scratch, *arguments) for change in changes]
    words, binary = without(commands(*arguments)[1][program], "-Werror"), Path(scratch) / program
    words[words.index("-o") + 1] = str(binary)
    at = next(i for i, w in enumerate(words) if w.endswith("libdmuon.a"))
    subprocess.run([*words[:at], *objects, *words[at:]], cwd=ROOT, check=True)
    return binary
