"""Operations on files of the arm's folder are on record, whoever writes, and planned failures
inside a save strike between them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest

from ecrl import files
from ecrl.faults import matches
from ecrl.files import looks_binary
from ecrl.recording import Recording
from ecrl_cli.audit.records import read_arm
from ecrl_cli.audit.saving import checkpoints
from tests.unit.audit_recordings import write

HERE = Path(__file__).parents[2]
STARTUP = HERE / "src" / "ecrl" / "startup"
# Plays the recorder of steps for jobs without torch: `step()` is one optimizer step.
STEPS = """
import sys
from ecrl import steps, files
def step():
    found = steps.recorder()
    found.steps += 1
    import threading
    found.thread = threading.get_ident()
    found.recording.write("step", step=found.steps)
    found.faults.before_step(found.steps + 1)
out = sys.argv[1]
"""


def run(
    folder: Path,
    code: str,
    strikes: Sequence[dict[str, Any]] = (),
    rc: int = 0,
    **environment: str,
) -> list[dict[str, Any]]:
    """Runs `code` as a job of an arm; returns the lines of all its processes."""
    (folder / "work").mkdir(exist_ok=True)
    path = os.pathsep.join([str(STARTUP), str(HERE / "src")])
    recorded = {
        "PYTHONPATH": path,
        "ECRL_RECORD": str(folder),
        "ECRL_ARM_DIR": str(folder / "work"),
        "ECRL_ATTEMPT": "0",
    }
    bare = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    script = folder / "job.py"
    script.write_text(STEPS + dedent(code))
    command = [sys.executable, str(script), str(folder / "work")]
    done = subprocess.run(
        command,
        env=bare | recorded | {"ECRL_STRIKES": json.dumps(strikes)} | environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == rc, done.stderr[-3000:]
    return [
        json.loads(line)
        for file in sorted(folder.glob("attempt-*/*.jsonl"))
        for line in file.read_text().splitlines()
    ]


def operations(lines: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    named = [
        (line["op"], line["path"], *([line["to"]] if "to" in line else []), line["after_step"])
        for line in lines
        if line["type"] == "file"
    ]
    assert [line for line in lines if line["type"] == "trouble"] == []
    return named


def strike(point: str, kind: str = "kill", step: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "step": step,
        "moment": "save",
        "rank": 0,
        "index": 0,
        "attempt": 0,
        "point": point,
        **more,
    }


def test_a_save_in_the_jobs_own_format_is_on_record(tmp_path: Path) -> None:
    code = """
        import os, pathlib, shutil
        step()
        os.mkdir(out + "/step-1")
        pathlib.Path(out, "step-1/state.bin.part").write_bytes(b"x" * 10)
        os.replace(out + "/step-1/state.bin.part", out + "/step-1/state.bin")
        step()
        os.link(out + "/step-1/state.bin", out + "/best.bin")
        shutil.rmtree(out + "/step-1")
        os.truncate(out + "/best.bin", 5)
        os.symlink("best.bin", out + "/newest")
        open(out + "/best.bin", "rb").read()
        with open("/dev/null", "w"):
            pass
    """
    assert operations(run(tmp_path, code)) == [
        ("mkdir", "step-1", 1),
        ("write", "step-1/state.bin.part", 1),
        ("closed", "step-1/state.bin.part", 1),
        ("rename", "step-1/state.bin.part", "step-1/state.bin", 1),
        ("link", "step-1/state.bin", "best.bin", 2),
        ("remove", "step-1/state.bin", 2),
        ("rmdir", "step-1", 2),
        ("truncate", "best.bin", 2),
        ("symlink", "newest", 2),
        ("read", "best.bin", 2),
    ]


def test_what_is_staged_elsewhere_is_seen_when_it_comes(tmp_path: Path) -> None:
    code = """
        import os
        step()
        with open(out + "/../staged", "wb") as file:
            file.write(b"x")
        os.rename(out + "/../staged", out + "/last.bin")
    """
    assert operations(run(tmp_path, code)) == [("rename", str(tmp_path / "staged"), "last.bin", 1)]


def test_what_a_file_held_that_is_written_from_its_start_is_counted(tmp_path: Path) -> None:
    code = """
        import os
        for mode in ("w", "a", "r+", "w"):
            step()
            with open(out + "/log.csv", mode) as file:
                file.write("x")
        open(out + "/new", "w").close()
        os.replace(out + "/new", out + "/log.csv")
    """
    lines = [line for line in run(tmp_path, code) if line["type"] == "file"]
    emptied = [
        line.get("emptied")
        for line in lines
        if line["op"] in ("write", "rename") and "log.csv" in (line["path"], line.get("to"))
    ]
    assert emptied == [None, None, None, 2, 1]


def test_a_file_that_is_written_in_every_step_gets_few_lines(tmp_path: Path) -> None:
    code = """
        for number in range(300):
            step()
            with open(out + "/log.txt", "a") as file:
                file.write("x")
            open(out + "/log.txt").close()
    """
    named = operations(run(tmp_path, code))
    assert (
        3 <= sum(op == "write" for op, *_ in named) < 12
        and 8 <= sum(op == "read" for op, *_ in named) < 20
    )


def test_more_events_than_are_recorded_are_said_to_be_missing(tmp_path: Path) -> None:
    code = """
        files.MAX_LINES = 4
        step()
        for number in range(9):
            open(f"{out}/{number}.bin", "wb").close()
        step()
    """
    lines = run(tmp_path, code)
    assert len(operations(lines)) == 4
    assert [line["text"] for line in lines if line["type"] == "note"] == [
        "more file events (other) than are recorded: no further ones"
    ]


def test_another_thread_and_another_process_are_told_apart(tmp_path: Path) -> None:
    code = """
        import os, subprocess, threading
        step()
        def write():
            open(out + "/thread.bin", "wb").close()
        thread = threading.Thread(target=write)
        thread.start(), thread.join()
        if os.fork() == 0:
            open(out + "/child.bin", "wb").close()
            os._exit(0)
        os.wait()
        other = f"open({out!r} + '/other.bin', 'wb').close()"
        subprocess.run([sys.executable, "-c", other], check=True)
    """
    lines = run(tmp_path, code)
    assert [line.get("overlapped") for line in lines if line.get("path") == "thread.bin"] == [
        True,
        True,
    ]
    (trained,) = [
        path for path in tmp_path.glob("attempt-00/*.jsonl") if '"type":"step"' in path.read_text()
    ]
    assert "child.bin" not in trained.read_text() and "other.bin" not in trained.read_text()
    assert any(line.get("path") == "other.bin" for line in lines)


def test_a_file_event_names_no_record_before_the_rank_is_known(tmp_path: Path) -> None:
    code = """
        import os
        open(out + "/data.bin", "wb").close()
        os.environ["RANK"] = "3"
        step()
        open(out + "/more.bin", "wb").close()
    """
    run(tmp_path, code)
    assert [path.name.split("-")[0] for path in tmp_path.glob("attempt-00/*.jsonl")] == ["rank3"]


def test_what_a_job_read_before_it_died_is_on_record(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "last.bin").write_bytes(b"x")
    lines = run(tmp_path, "open(out + '/last.bin').read()\nraise SystemExit(7)", rc=7)
    assert operations(lines) == [("read", "last.bin", 0)]


SAVE = """
    import os
    for number in range(1, 4):
        step()
        os.makedirs(f"{out}/step-{number}")
        with open(f"{out}/step-{number}/state.bin", "wb") as file:
            file.write(b"x" * 100)
            file.flush()
            file.write(b"y" * 100)
        os.write(1, b"")
        with open(out + "/new", "w") as file:
            file.write(str(number))
        os.replace(out + "/new", out + "/newest.txt")
"""


@pytest.mark.parametrize(
    ("point", "states", "newest"),
    [
        ("step-#/state.bin:before", [200], "1"),
        ("state.bin:empty", [200, 0], "1"),
        ("state.bin:torn", [200, 100], "1"),
        ("state.bin:after", [200, 200], "1"),
        ("step-#:before", [200], "1"),
        ("new:torn", [200, 200], "1"),
        ("newest.txt:before", [200, 200], "1"),
        ("newest.txt:after", [200, 200], "2"),
    ],
)
def test_a_death_inside_a_save_leaves_what_is_planned(
    tmp_path: Path, point: str, states: list[int], newest: str
) -> None:
    lines = run(tmp_path, SAVE, [strike(point, step=2)], rc=-9)
    assert [
        path.stat().st_size for path in sorted(tmp_path.glob("work/step-*/state.bin"))
    ] == states
    assert (tmp_path / "work" / "newest.txt").read_text() == newest
    (line,) = [line for line in lines if line["type"] == "strike"]
    assert (line["moment"], line["step"], line["how"]) == ("save", 2, point.rpartition(":")[2])
    assert line["path"].replace("2", "#").endswith(point.rpartition(":")[0].split("/")[-1])


def test_a_pattern_for_a_file_of_a_save_stands_for_no_log(tmp_path: Path) -> None:
    """A save through a random temporary name, and logs beside it."""
    code = """
        import os, tempfile
        step()
        open(out + "/run-1.log", "a").close()
        open(out + "/table.csv", "w").close()
        with os.fdopen(tempfile.mkstemp(dir=out)[0], "wb") as file:
            file.write(b"x" * 100)
    """
    lines = run(tmp_path, code, [strike("*:torn")], rc=-9)
    (line,) = [line for line in lines if line["type"] == "strike"]
    assert line["path"].startswith("tmp")
    (tmp_path / "named").mkdir()
    lines = run(tmp_path / "named", code, [strike("run-#.log:before")], rc=0)
    assert not [line for line in lines if line["type"] == "strike"]


def test_a_planned_error_inside_a_save_reaches_the_job(tmp_path: Path) -> None:
    code = SAVE.replace(
        "    import os\n",
        "    import os\n    try:\n        open(out + '/a.bin', 'w')\n    except RuntimeError:"
        " print('no')\n",
        1,
    )
    lines = run(tmp_path, code, [strike("state.bin:before", kind="raise")], rc=1)
    assert [line["kind"] for line in lines if line["type"] == "strike"] == ["raise"]


def test_a_rank_dies_when_the_others_have_done_their_part_of_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 records until the time 1.2 and is quiet then, or records for ever."""
    write(tmp_path, 0, 0, [{"type": "process"}])
    record = write(tmp_path, 0, 1, [{"type": "process"}])
    now, until = 0.0, 0.0

    def pass_time(seconds: float) -> None:
        nonlocal now
        now += seconds
        if now < until:
            record.write_text(record.read_text() + "{}\n")
        (tmp_path / "attempt-00" / "output.log").write_text("x" * int(1000 * now))

    monkeypatch.setattr(files, "time", SimpleNamespace(monotonic=lambda: now, sleep=pass_time))
    for goes_on_until, due in ((1.2, 1.7), (99.0, 3.0)):
        now, until = 0.0, goes_on_until
        files._let_other_ranks_go_on(Recording(str(tmp_path)))
        assert now == pytest.approx(due, abs=0.02)


def test_a_slow_writers_thread_lets_training_go_on(tmp_path: Path) -> None:
    """What the job does while another thread writes is done when it dies."""
    code = """
        import threading
        def write():
            with open(out + "/state.bin", "wb") as file:
                file.write(b"x" * 10)
        step()
        writer = threading.Thread(target=write)
        writer.start()
        open(out + "/pointer", "w").close()
        while True:
            step()
    """
    lines = run(tmp_path, code, [strike("state.bin:torn")], rc=-9)
    assert (tmp_path / "work" / "state.bin").stat().st_size == 5 and (
        tmp_path / "work" / "pointer"
    ).exists()
    # the save that it was in
    (begun,) = [line["step"] for line in lines if line["type"] == "strike"]
    assert max(line["step"] for line in lines if line["type"] == "step") > begun


TORCH = """
    import io, signal, torch, safetensors, safetensors.torch, warnings
    warnings.simplefilter("ignore")
    from torch.utils.data import DataLoader
    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, index):
            open(out + "/cache.bin", "wb").close()
            return torch.zeros(2)
    if __name__ == "__main__":
        signal.signal(signal.SIGTERM, lambda *_: None)
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        for batch in DataLoader(Data(), 4, num_workers=1):
            opt = torch.optim.SGD(model.parameters(), 0.1)
            model(batch).sum().backward()
            opt.step()
        torch.save(model.state_dict(), out + "/whole.pt")
        safetensors.torch.save_file({"a": torch.zeros(2)}, out + "/a.safetensors")
        safetensors.torch.load_file(out + "/a.safetensors")
        opened = safetensors.safe_open(out + "/a.safetensors", "pt")
        assert isinstance(opened, safetensors.safe_open)
        torch.jit.save(torch.jit.script(model), out + "/script.pt")
        torch.jit.load(out + "/script.pt")
        torch.load(out + "/whole.pt")
        buffer = io.BytesIO()
        torch.save(1, buffer)
        with open(out + "/open.pt", "wb") as file:
            torch.save({"a": torch.zeros(100)}, file)
"""


@pytest.fixture(scope="module")
def in_c(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("whole")
    return folder / "work", run(folder, TORCH)


def test_writers_and_readers_in_c_are_followed_and_workers_are_not(
    in_c: tuple[Path, list[dict[str, Any]]],
) -> None:
    lines = in_c[1]
    assert operations(lines) == [
        ("write", "whole.pt", 1),
        ("closed", "whole.pt", 1),
        ("write", "a.safetensors", 1),
        ("closed", "a.safetensors", 1),
        ("read", "a.safetensors", 1),
        ("write", "script.pt", 1),
        ("closed", "script.pt", 1),
        ("read", "script.pt", 1),
        ("read", "whole.pt", 1),
        ("write", "open.pt", 1),
        ("closed", "open.pt", 1),
    ]
    assert [line["signal"] for line in lines if line.get("what") == "signal.signal"] == [15]


@pytest.mark.parametrize(
    ("entry", "torn"),
    [
        (strike("a.safetensors:torn"), "a.safetensors"),
        # no point: the first file
        (
            {"kind": "kill", "step": 1, "moment": "save", "rank": 0, "index": 0, "attempt": 0},
            "whole.pt",
        ),
    ],
)
def test_a_file_of_a_writer_in_c_is_torn(
    tmp_path: Path, in_c: tuple[Path, list[dict[str, Any]]], entry: dict[str, Any], torn: str
) -> None:
    run(tmp_path, TORCH, [entry], rc=-9)
    whole, half = in_c[0] / torn, tmp_path / "work" / torn
    assert half.read_bytes() == whole.read_bytes()[: whole.stat().st_size // 2]


def test_a_point_names_a_file_by_its_path_or_its_last_part() -> None:
    assert matches("checkpoint-10/trainer_state.json", "checkpoint-#/trainer_state.json")
    assert matches("checkpoint-10/trainer_state.json", "trainer_state.json") and matches(
        "a/b-1.pt", "*.pt"
    )
    assert not matches("checkpoint-10/optimizer.pt", "trainer_state.json") and not matches(
        "checkpoint-x", "checkpoint-#"
    )


def test_what_holds_no_state_is_told_by_its_name() -> None:
    for name in (
        "log.txt",
        "a/events.out.tfevents.12.host",
        "metrics.jsonl.tmp",
        "sample.png",
        "trainer_state.json",
    ):
        assert not looks_binary(name), name
    for name in (
        "last.pt",
        "last.pt.tmp",
        "checkpoint-5",
        "model.safetensors",
        "__0_0.distcp",
        "state",
    ):
        assert looks_binary(name), name


def test_a_rename_that_a_failure_came_before_did_not_happen(tmp_path: Path) -> None:
    """Its line is written first: the checkpoint of step 2 never got its name."""
    lines: list[dict[str, Any]] = [
        {"type": "process", "format": 1, "rank": 0, "world_size": 1, "attempt": 0}
    ]
    for step in (1, 2):
        lines.append({"type": "step", "step": step, "losses": [0.5], "params": str(step)})
        for event in (
            {"op": "write", "path": "a.tmp"},
            {"op": "closed", "path": "a.tmp"},
            {"op": "rename", "path": "a.tmp", "to": "a.pt"},
        ):
            lines.append({"type": "file", "after_step": step, **event})
    write(tmp_path, 0, 0, lines)
    assert [(one.step, one.finished) for one in checkpoints(read_arm(tmp_path))] == [
        (1, True),
        (2, True),
    ]
    write(
        tmp_path,
        0,
        0,
        [
            *lines,
            {
                "type": "strike",
                "index": 0,
                "kind": "kill",
                "moment": "save",
                "step": 2,
                "path": "a.pt",
                "how": "before",
            },
        ],
    )
    assert [(one.step, one.finished) for one in checkpoints(read_arm(tmp_path))] == [
        (1, True),
        (2, False),
    ]
