"""A disk that is full while a run trains: `checkpoint.on_error=stop` ends the run at the failed
save, and room brings it back.
"""

from __future__ import annotations

import os
import random
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from ecrl_cli.records.layout import RunLayout
from ecrl_cli.studies.training.training_study import ending
from ecrl_cli.verify.verdict import INVALID, render
from ecrl_cli.verify.verify_run import verify_run
from tests.conftest import command
from tests.e2e.runs import supervisor, tiny

IN_PRIVATE = ("unshare", "--mount", "--propagation", "private")

# A checkpoint has 3 MB: on a disk that has shrunk to 8 there is room for the two that are kept, not
# for the next one.
RUN = tiny(
    *(
        "world_size=1",
        "model.width=32",
        "target_steps=80",
        "checkpoint.every=4",
        "checkpoint.keep=2",
        "failure=none",
        "failure.steps=",
        "failure.rank=",
    ),
    *("variant=blk", "run_dir=run", "checkpoint.on_error=stop"),
)


@pytest.mark.needs("unshare", "private mounts")
def test_a_full_disk_stops_the_run_and_room_brings_it_back(tmp_path: Path) -> None:
    train = shlex.join(command("train", *RUN))
    script = (
        f"mkdir run && mount -t tmpfs -o size=64m,mode=700 none run || exit 99\n{train} >first.log"
        " 2>&1 &\nuntil [ -e run/checkpoints/step_00000008 ] || ! kill -0 $! 2>/dev/null; do sleep"
        " 0.02; done\nuntil mount -o remount,size=8m run 2>/dev/null || ! kill -0 $! 2>/dev/null;"
        " do sleep 0.005; done\nwait $!; echo $? >first.code; cp run/supervisor.json first.json;"
        " cp run/logs/attempt-00/checkpoint_rank0.jsonl first.lines\nmount -o remount,size=64m"
        f" run\n{train} >second.log 2>&1; echo $? >second.code\ncp -r run kept\n"
    )
    done = subprocess.run(
        [*IN_PRIVATE, "bash", "-c", script],
        cwd=tmp_path,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = {path.name: path.read_text() for path in tmp_path.iterdir() if path.is_file()}
    assert [int(said[f"{name}.code"]) for name in ("first", "second")] == [5, 0], "\n".join(
        said.values()
    )
    (last,) = [line for line in said["first.log"].splitlines() if line.startswith("ecrl: error:")]
    found = re.search(
        r"step (\d+) was not saved \(write: ENOSPC at checkpoints/.* \(No space left on device:"
        r" [0-9]+ bytes to write, [0-9]+ free\)\); checkpoint.on_error=stop",
        last,
    )
    assert found is not None, last
    assert (
        '"restarts": 0' in said["first.json"]
        and '"gave_up"' in said["first.json"]
        and "Traceback" not in said["first.log"]
    )
    assert said["first.lines"].count('"event":"failed"') == 1
    record = supervisor(tmp_path / "kept")
    assert [attempt["resumed_from_step"] for attempt in record["attempts"]] == [
        0,
        int(found[1]) - 4,
    ]
    assert record["terminal_status"] == "completed"


@pytest.mark.needs("unshare", "private mounts")
@pytest.mark.parametrize("launcher", ["zygote", "torchrun"])
def test_a_disk_that_fills_at_any_step_costs_no_bit(tmp_path: Path, launcher: str) -> None:
    """A supervisor that cannot record its own end may leave a verdict that is unknown."""
    step = random.Random(launcher).randint(1, 60)
    keys = ("failure=none", "failure.steps=", "failure.rank=", "target_steps=80")
    keys += ("checkpoint=overlapped", "checkpoint.every=4", f"supervision.launcher={launcher}")
    train = shlex.join(command("train", *tiny(*keys), "run_dir=run"))
    log, there = "run/logs/attempt-00/rank0.jsonl", "kill -0 $! 2>/dev/null"
    script = (
        f"{train} >log 2>&1 || exit 98; mv run calm; mkdir run && mount -t tmpfs -o size=32m none"
        f" run || exit 99\n{train} >>log 2>&1 &\nat() {{ [ $(cat {log} 2>/dev/null | wc -l) -ge $1"
        f" ]; }}\nuntil at {step} || ! {there}; do sleep 0.01; done; cat /dev/zero >run/full"
        f" 2>/dev/null\nuntil at {step + 15} || ! {there}; do sleep 0.01; done; rm run/full; wait"
        f" $!; code=$?\nfor again in 1 2 3 4; do [ $code = 0 ] || {train} >>log 2>&1; code=$?;"
        " done; cp -r run kept; exit $code"
    )
    done = subprocess.run([*IN_PRIVATE, "bash", "-c", script], cwd=tmp_path, check=False)
    said = (tmp_path / "log").read_text()
    assert done.returncode == 0 and "Traceback" not in said, said
    kept = RunLayout(tmp_path / "kept")
    assert ending(kept) == ending(RunLayout(tmp_path / "calm"))
    verdict = verify_run(kept.root)
    assert verdict.status != INVALID, render(verdict)
