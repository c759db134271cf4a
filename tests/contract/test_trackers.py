"""Each tracker shows what the records say, read back by the package that people read it with; and
none of them can change or end a run.
"""

from __future__ import annotations

import importlib.util
import json
import math
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.cli.main import main
from ecrl_cli.config.schema import TrackerConfig
from ecrl_cli.config.trackers import TRACKERS
from ecrl_cli.errors import ConfigError
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.runs.tracking.follow import FOLDER, Follower
from ecrl_cli.runs.tracking.sinks import MLflow, Prometheus
from ecrl_cli.runs.tracking.tracked import tracked
from tests.contract.variants import check_description, check_registration
from tests.e2e.runs import tiny
from tests.in_process import ecrl_in_process
from tests.needs import require
from tests.runs.builder import RunBuilder, build_blk, build_ref, config_of

Shown = tuple[dict[int, float], str]  # the loss by step, and the verdict


def logged_losses(layout: RunLayout) -> dict[int, list[float]]:
    """What rank 0 logged for each step, attempt by attempt: the last one counts."""
    logged: dict[int, list[float]] = {}
    for path in sorted(layout.logs.glob("attempt-*/rank0.jsonl")):
        for line in map(json.loads, path.read_text().splitlines()):
            logged.setdefault(line["global_step"], []).append(line["loss"])
    assert max(logged) == 24
    return logged


def of_tensorboard(place: Path) -> Shown:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(place), size_guidance={"scalars": 0, "tensors": 0})
    read.Reload()
    verdict = read.Tensors("verdict")[-1].tensor_proto.string_val[0].decode()
    return {event.step: event.value for event in read.Scalars("loss")}, verdict


def of_mlflow(place: Path) -> Shown:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=place.absolute().as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("ecrl").experiment_id])
    assert (
        run.info.status == "FINISHED"
        and run.data.params["model.name"] == "small_cnn"
        and run.data.metrics["goodput"] > 0
    )
    for figure in run.data.metrics:
        steps = [each.step for each in client.get_metric_history(run.info.run_id, figure)]
        assert len(set(steps)) == len(steps), figure
    return {
        each.step: each.value for each in client.get_metric_history(run.info.run_id, "loss")
    }, run.data.tags["verdict"]


def wandb_records(data: bytes) -> Iterator[bytes]:
    """The records of W&B's file: a header of 7 bytes, then blocks of 32 KiB as in LevelDB's log:
    checksum, length, type (2, 3, 4: parts of one).
    """
    at, parts = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # no room for a header: the rest of the block is empty
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


def of_wandb(place: Path) -> Shown:
    from wandb.proto.wandb_internal_pb2 import Record

    found: dict[int, float] = {}
    verdict = ""
    for file in sorted(place.glob("wandb/offline-run-*/*.wandb")):
        for data in wandb_records(file.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            assert not record.run.host
            values = {
                item.key or item.nested_key[0]: json.loads(item.value_json)
                for item in record.history.item
            }
            if "loss" in values:
                step = record.history.step.num or values["_step"]
                assert found.setdefault(step, values["loss"]) == values["loss"]
            verdict = next(
                (
                    json.loads(item.value_json)
                    for item in record.summary.update
                    if item.key == "verdict"
                ),
                verdict,
            )
    return found, verdict


def of_prometheus(place: Path) -> Shown:
    lines = [
        line for line in (place / "blk.prom").read_text().splitlines() if not line.startswith("#")
    ]
    values = {line.partition("{")[0]: line.rpartition(" ")[2] for line in lines}
    verdict = (
        next(line for line in lines if line.startswith("ecrl_verdict"))
        .partition('is="')[2]
        .partition('"')[0]
    )
    assert float(values["ecrl_goodput"]) > 0
    return {int(float(values["ecrl_step"])): float(values["ecrl_final_loss"])}, verdict


READ: dict[str, tuple[str, Callable[[Path], Shown]]] = {
    "tensorboard": ("tensorboard", of_tensorboard),
    "mlflow": ("mlflow", of_mlflow),
    "wandb": ("wandb", of_wandb),
    "prometheus": ("prometheus", of_prometheus),
}


@pytest.mark.parametrize("name", TRACKERS.builtin)
def test_a_tracker_is_described(name: str) -> None:
    check_description(TRACKERS, name, "tracker", "name")


def test_a_tracker_is_registered_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    check_registration(TRACKERS, monkeypatch)


@pytest.mark.filterwarnings("ignore")  # of the packages
@pytest.mark.parametrize("name", READ)
def test_a_tracker_shows_what_the_records_say(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run with two restarts: each step once, and then the verdict; told twice it is the
    same.
    """
    if package := TRACKERS.of(name).package:
        require(package)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    build_ref(tmp_path)
    config: Any = replace(config_of("blk", "kill", (9, 20), 1), tracker=TrackerConfig(name))
    layout = RunBuilder(tmp_path / "blk", config).build()
    for _ in range(2):
        assert main(["verify", str(layout.root), "--track"]) == 0
        assert "tracker=" not in capsys.readouterr().err
        where, read = READ[name]
        shown, verdict = read(layout.root / FOLDER / where)
        due = {step: values[-1] for step, values in logged_losses(layout).items()}
        assert (
            verdict == "valid"
            and max(shown) == 24
            and (name == "prometheus" or set(shown) == set(due))
        )
        assert all(value == pytest.approx(due[step]) for step, value in shown.items())
        assert (
            name != "prometheus"
            or "\necrl_loss{" in (layout.root / FOLDER / where / "blk.prom").read_text()
        ), "told twice, it still has the loss"


KILLED_SESSION = """
import os, signal, sys
from pathlib import Path
from ecrl_cli.runs.tracking.follow import Follower
Follower(Path(sys.argv[1]), sys.argv[2], "").more()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_run_that_goes_on_has_one_history(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run whose steps have other losses when they are done again: the losses that count, each
    step once, though the process that follows was killed after the first restart.
    """
    require(name)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    layout = build_blk(tmp_path, bug_from=7)
    logged = logged_losses(layout)
    assert logged[8][0] != logged[8][1] and len(logged[20]) == 2
    with without(tmp_path, layout.attempt(2).folder, layout.supervisor, layout.metrics):
        session = [sys.executable, "-c", KILLED_SESSION, str(layout.root), name]
        assert subprocess.run(session, check=False).returncode == -signal.SIGKILL
    assert main(["verify", str(layout.root)]) == 1
    Follower(layout.root, name, "").end()
    shown, verdict = READ[name][1](layout.root / FOLDER / name)
    assert verdict == "invalid" and set(shown) == set(logged)
    assert all(shown[step] == pytest.approx(values[-1]) for step, values in logged.items())


@contextmanager
def without(aside: Path, *paths: Path) -> Iterator[None]:
    """While entered, the run has not come so far that these exist."""
    moved = {path: aside / path.name for path in paths if path.exists()}
    for path, place in moved.items():
        path.rename(place)
    yield
    for path, place in moved.items():
        place.rename(path)


def test_a_step_is_told_when_a_checkpoint_covers_it_or_the_run_has_come_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Prometheus, "LIVE", False)
    layout, steps = build_blk(tmp_path), list[int]()
    monkeypatch.setattr(Prometheus, "step", lambda self, step, values: steps.append(step))
    with layout.attempt(0).checkpoints.open("a") as log:
        log.write('{"event":"comm\n')  # torn by a death, closed by the next process that wrote
    with without(tmp_path, layout.attempt(1).folder, layout.attempt(2).folder, layout.supervisor):
        Follower(layout.root, "prometheus", "").end()
    assert steps == list(range(1, 7)), "died at step 9, saved after 6"
    with without(tmp_path, layout.attempt(2).checkpoints, layout.supervisor):
        following = Follower(layout.root, "prometheus", "")
        following.more()
        assert steps == list(range(1, 19)), "the last checkpoint is not there yet"
    following.end()
    assert steps == list(range(1, 25))


def test_a_run_without_checkpoints_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Prometheus, "LIVE", False)
    layout, steps = RunBuilder(tmp_path / "clean", config_of("clean")).build(), list[int]()
    monkeypatch.setattr(Prometheus, "step", lambda self, step, values: steps.append(step))
    Follower(layout.root, "prometheus", "").more()
    assert steps == list(range(1, 25))


def test_spans_are_of_one_trace_and_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run with two restarts: a session, in it three attempts of which two died of a kill, in
    each its starting up and what it saved.
    """
    require("opentelemetry-sdk")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    config: Any = replace(config_of("blk", "kill", (9, 20), 1), tracker=TrackerConfig("otel"))
    layout = RunBuilder(tmp_path / "blk", config).build()
    for _ in range(2):
        Follower(layout.root, "otel", "").end()
    lines = (layout.root / FOLDER / "otel" / "spans.jsonl").read_text().splitlines()
    spans = [json.loads(line) for line in lines]
    by_id = {span["context"]["span_id"]: span for span in spans}
    assert len(by_id) == len(spans) and len({span["context"]["trace_id"] for span in spans}) == 1
    named: dict[str, list[dict[str, Any]]] = {}
    for span in spans:
        named.setdefault(span["name"], []).append(span)
        if span["parent_id"] is not None:
            around = by_id[span["parent_id"]]
            assert around["start_time"] <= span["start_time"] <= span["end_time"]
            assert span["end_time"] <= around["end_time"] or span["name"] == "save"
    assert len(named["session"]) == 1 and named["session"][0]["parent_id"] is None
    attempts = named["attempt"]
    assert [span["attributes"]["ecrl.outcome"] for span in attempts] == [
        "died",
        "died",
        "completed",
    ]
    assert [span["status"]["status_code"] for span in attempts] == ["ERROR", "ERROR", "UNSET"]
    assert [[event["name"] for event in span["events"]] for span in attempts] == [
        ["fault kill"],
        ["fault kill"],
        [],
    ]
    saved = {span["attributes"]["ecrl.step"] for span in named["save"]}
    assert saved >= {6, 12, 18, 24} and {"launch", "import"} <= named.keys()
    assert named["session"][0]["resource"]["attributes"]["service.name"] == "ecrl"


def test_an_exporter_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("opentelemetry-sdk")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "elsewhere")
    with pytest.raises(ConfigError, match="no exporter elsewhere is installed; pip install"):
        TRACKERS.of("otel").load()(str(tmp_path), "run", "a", {})


def told(place: Path, ident: str, step: int | None = None, name: str = "run") -> str:
    """The file after a session: with `step` one that trains, else one that is told the end
    alone.
    """
    tracker = Prometheus(str(place), name, ident, {})
    if step is not None:
        tracker.step(step, {"loss": 0.5})
    tracker.summary(24, {"goodput": 3.0}, {"verdict": "valid"})
    return (place / f"{name}.prom").read_text()


def test_the_prometheus_file_keeps_what_the_same_run_has_told_until_it_goes_on(
    tmp_path: Path,
) -> None:
    assert 'ecrl_loss{run="run"} 0.5\n' in told(tmp_path, "a", 24)
    assert 'ecrl_loss{run="run"} 0.5\n' in told(tmp_path, "a"), "judged later"
    assert "ecrl_loss" not in told(tmp_path, "b"), "another run of that name"
    told(tmp_path, "b", 24)
    going_on = Prometheus(str(tmp_path), "run", "b", {})
    going_on.step(25, {"loss": math.nan})
    text = (tmp_path / "run.prom").read_text()
    assert 'ecrl_loss{run="run"} nan\n' in text and "goodput" not in text and "verdict" not in text
    assert 'ecrl_loss{run="run"} nan\n' in told(tmp_path, "b")


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"# run a\necrl_loss\n", b"", b"# of another program\nloss 1\n"]
)
def test_a_prometheus_file_that_cannot_be_read_is_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.prom").write_bytes(content)
    assert told(tmp_path, "a", 24).startswith("# run a\n")


def test_a_missing_package_is_said_before_the_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ecrl_cli.linux.prerequisites.find_spec", lambda name: None)
    assert main(["train", "tracker=mlflow", "run_dir=run"]) == 2
    assert (
        "tracker: mlflow needs the package mlflow; pip install 'ecrl[mlflow]', or tracker=none"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "run").exists()


def test_a_tracked_run_is_the_run_that_it_would_have_been(tmp_path: Path) -> None:
    """Against an undisturbed run without a tracker, bit for bit; the file ends with the last step
    and the metrics.
    """
    keys = tiny("failure.steps=[9]", "reference=auto")
    ecrl_in_process(
        tmp_path,
        "train",
        *keys,
        "tracker=prometheus",
        f"tracker.place={tmp_path}/shown",
        "run_dir=run",
    )
    ecrl_in_process(tmp_path, "verify", "run")
    assert [path.name for path in (tmp_path / "shown").iterdir()] == ["run.prom"], (
        "its reference is not shown"
    )
    said = (tmp_path / "shown" / "run.prom").read_text()
    assert (
        'ecrl_step{run="run"} 24.0\n' in said
        and 'ecrl_restarts{run="run"} 1.0\n' in said
        and 'is="completed"} 1' in said
    )


@pytest.mark.parametrize(
    ("place", "said"), [("/dev/null/x", "NotADirectoryError"), ("", "ended by a test")]
)
def test_a_tracker_that_fails_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, said: str
) -> None:
    if not place:
        monkeypatch.setattr(
            "ecrl_cli.runs.tracking.tracked.COMMAND",
            (sys.executable, "-c", "print('ended by a test'); raise SystemExit(3)"),
        )
    keys = tiny("target_steps=12", "failure=none", "failure.steps=", "failure.rank=")
    done = ecrl_in_process(
        tmp_path,
        "train",
        *keys,
        "tracker=prometheus",
        f"tracker.place='{place}'" if place else "private=false",
        "run_dir=run",
    )
    lines = [line for line in done.stderr.splitlines() if "tracker=prometheus" in line]
    assert len(lines) == 1 and said in lines[0] and lines[0].endswith("the records are whole")


def test_one_that_does_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "ecrl_cli.runs.tracking.tracked.COMMAND",
        (sys.executable, "-c", "import time; time.sleep(600)"),
    )
    monkeypatch.setattr("ecrl_cli.runs.tracking.tracked.LAST_S", 0.2)
    layout = RunBuilder(
        tmp_path / "blk", replace(config_of("ref"), tracker=TrackerConfig("prometheus"))
    ).build()
    assert main(["verify", str(layout.root), "--track"]) == 0
    assert (
        "tracker=prometheus: did not end within 0 s and was ended; the records are whole"
        in capsys.readouterr().err
    )


def test_a_run_that_goes_on_with_another_tracker_tells_that_one(tmp_path: Path) -> None:
    """config.json keeps the tracker that the run began with."""
    config = config_of("ref")
    layout, said = RunBuilder(tmp_path / "ref", config).build(), list[str]()
    with tracked(
        replace(config, tracker=TrackerConfig("prometheus", str(tmp_path / "shown"))),
        layout,
        said.append,
    ):
        pass
    assert (
        not said and 'ecrl_step{run="ref"} 24.0\n' in (tmp_path / "shown" / "ref.prom").read_text()
    )


def test_a_run_without_a_tracker_has_nobody_to_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(build_ref(tmp_path).root), "--track"]) == 0
    assert "ref: began without a tracker; --track has nobody to tell" in capsys.readouterr().err


def test_the_hundredth_attempt_comes_after_the_eleventh(tmp_path: Path) -> None:
    layout, steps = (
        RunBuilder(tmp_path / "blk", config_of("blk", "kill", (9, 20), 1)).build(),
        list[int](),
    )
    for old, new in ((2, 100), (1, 11)):
        layout.attempt(old).rank(0).parent.rename(layout.logs / f"attempt-{new}")
    follower = Follower(layout.root, "prometheus", "")
    follower.tracker.step = lambda step, values: steps.append(step)  # type: ignore[method-assign]
    follower.more()
    assert steps == list(range(1, 25))


def test_a_password_in_the_place_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        main(["train", "tracker=mlflow", "tracker.place='https://me:word@host/x@y'", "run_dir=run"])
        == 2
    )
    said = capsys.readouterr().err
    assert (
        "tracker.place: holds a user or password, which would be recorded" in said
        and "word@" not in said
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("status", "shown"), [("completed", "FINISHED"), ("gave_up", "FAILED"), ("stopped", "KILLED")]
)
def test_mlflow_says_how_a_run_ended(tmp_path: Path, status: str, shown: str) -> None:
    require("mlflow")
    mlflow = importlib.import_module("mlflow")
    for _ in range(2):
        tracker = MLflow(str(tmp_path), "run", "1234", {})
        client = mlflow.MlflowClient(tracking_uri=tmp_path.as_uri())
        (run,) = client.search_runs([client.get_experiment_by_name("ecrl").experiment_id])
        assert run.info.status == "RUNNING"
        tracker.summary(1, {}, {"status": status})
        tracker.close()
        assert client.get_run(run.info.run_id).info.status == shown


def test_the_supervisor_imports_no_tracker() -> None:
    code = (
        "import sys, ecrl_cli.runs.run, ecrl_cli.cli.verify; print(sorted({'tensorboard', 'mlflow',"
        " 'wandb', 'torch'} & set(sys.modules)))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )
