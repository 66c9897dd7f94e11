"""A signal in each phase of a run: no step begins that need not, the set is valid, the resumed run has the bits of one that nobody
stopped. The phase is met exactly, by a call inserted into the source there."""
import re
import signal
import subprocess

import pytest

from helpers import CKPT, ROOT, STOPPED, finish, mesh_keys, records, run_mesh, set_dir, set_names, start, steps
from mutation import commands, compile_changed, same_build, without

HERE = '    {{ void raise_in(const char *); raise_in("{}"); }}\n'.format
MIDDLE = ["    head_leaf_loss(leaf, &model->acts.head);\n    unit_release(model, head_unit(model), false);\n"
          "    stopwatch_mark(model->watch, 1);\n    backward_head(model, leaf);\n"]
PLACES = [("src/cli/train_main.c", "    Args args;\n", HERE("launch") + "    Args args;\n"),
          ("src/train/session.c", "    TRY(phase_state(s));\n", HERE("weights") + "    TRY(phase_state(s));\n"),
          ("src/train/step.c", "    comm_set_step(step);\n", "    { void raise_step(int64_t); raise_step(step); }\n    comm_set_step(step);\n"),
          ("src/model/model.c", MIDDLE[0], HERE("forward") + MIDDLE[0] + HERE("backward")),
          ("src/optim/muon.c", "    run_repeated(batch, stream, scratch, repeat);\n",
           HERE("optimizer") + "    run_repeated(batch, stream, scratch, repeat);\n"),
          ("src/train/eval.c", "        model_eval(s->model,", HERE("evaluation") + "        model_eval(s->model,"),
          ("src/checkpoint/writer.c", "    TRY(output_write(out, header, (size_t)header_nbytes));\n",
           HERE("save") + "    TRY(output_write(out, header, (size_t)header_nbytes));\n"),
          ("src/checkpoint/set.c", "    TRY(file_sync_dir(temporary, STATUS_CHECKPOINT));\n",
           HERE("commit") + "    TRY(file_sync_dir(temporary, STATUS_CHECKPOINT));\n")]
STEP = 3
USR1, TERM, INT = signal.SIGUSR1, signal.SIGTERM, signal.SIGINT
# phase: (first step in which it is met, steps that may begin after it, keys)
FOREGROUND = ["checkpoint.every=3", "checkpoint.background=false"]
CASES = {"launch": (0, 0, []), "weights": (0, 0, []), "forward": (STEP, 0, []), "backward": (STEP, 0, []), "optimizer": (STEP, 1, []),
         "evaluation": (STEP, 0, ["train.eval_every=3", "train.eval_batches=40"]), "save": (STEP, 1, FOREGROUND),
         "commit": (STEP, 1, FOREGROUND), "save in the background": (STEP, 1, ["checkpoint.every=3"])}
SENT = [("launch", 1, TERM), ("weights", 0, USR1), ("weights", 1, TERM), ("forward", 0, USR1), ("forward", 1, TERM), ("backward", 0, TERM),
        ("backward", 1, USR1), ("optimizer", 0, INT), ("optimizer", 1, USR1), ("evaluation", 1, USR1), ("evaluation", 0, TERM),
        ("save", 0, TERM), ("save", 1, USR1), ("commit", 0, USR1), ("save in the background", 1, USR1),
        ("save in the background", 0, TERM)]
MESH = (2, 1)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("program")
    objects = [compile_changed(file, (file, old, new), scratch, *same_build()) for file, old, new in PLACES]
    source, extra = ROOT / "tests" / "fixtures" / "raise_in.c", scratch / "raise_in.o"
    subprocess.run(["gcc", "-std=c17", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-c", source, "-o", extra], check=True)
    words = [w for w in without(commands(*same_build())[1]["dmuon-train"], "-Werror") if not w.endswith("train_main.o")]
    words[words.index("-o") + 1] = str(scratch / "dmuon-train")
    at = next(i for i, w in enumerate(words) if w.endswith("libdmuon.a"))
    subprocess.run([*words[:at], *objects, str(extra), *words[at:]], cwd=ROOT, check=True)
    return scratch / "dmuon-train"


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    run = tmp_path_factory.mktemp("straight") / "run"
    run_mesh((1, 1), run, "optimizer.schedule.kind=constant")
    return steps(run)


@pytest.mark.parametrize("phase,rank,number", SENT, ids=lambda v: v.name if isinstance(v, signal.Signals) else str(v))
def test_a_signal_in_each_phase_stops_the_run_in_time(phase, rank, number, program, straight, tmp_path, monkeypatch):
    first, more, keys = CASES[phase]
    run = tmp_path / "run"
    monkeypatch.setattr("helpers.TRAIN", program)
    env = {"DM_RAISE_PHASE": phase.split()[0], "DM_RAISE_STEP": str(first), "DM_RAISE_NUMBER": str(int(number)), "DM_RAISE_RANK": str(rank)}
    process = start(2, f"run.dir={run}", "threads=1", *mesh_keys(MESH), "train.steps=100000", "optimizer.schedule.kind=constant",
                    "checkpoint.keep=1", *keys, env=env)
    done = finish(process)
    assert done.returncode == STOPPED and "checkpoint saved" in done.stderr, done.stderr
    (raised,) = map(int, re.findall(r"raised in step (\d+)", done.stderr))
    last = max(steps(run), default=0)
    assert last <= raised + more and (raised == first or "background" in phase), (raised, last)
    assert set_names(run) == [f"step-{last:08d}"]
    assert subprocess.run([CKPT, "verify", set_dir(run, last)], check=False, capture_output=True).returncode == 0
    assert records(run, "end")[-1]["exit_code"] == STOPPED and records(run, "eval") == []
    monkeypatch.undo()
    run_mesh(MESH, run, "optimizer.schedule.kind=constant", "train.steps=7")
    assert steps(run) == {step: straight[step] for step in range(1, 8)}
