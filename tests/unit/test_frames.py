"""`ecrl.load`: runs as DataFrames, from the records alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

import ecrl
import ecrl_cli
from ecrl_cli.cli.main import main
from ecrl_cli.errors import RunDirectoryError
from ecrl_cli.history.load import load as load_records
from ecrl_cli.records.layout import RunLayout
from tests.runs.builder import build_blk, build_ref
from tests.unit.report_runs import Plan, arms, make_sweep

ROOT = Path(__file__).parents[2]
FRAMES = (
    *("runs", "steps", "epochs", "distances", "checkpoints", "restarts", "recoveries"),
    *("verdicts", "effects"),
)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = [plan for seed in (2, 10) for plan in arms(seed=seed)]
    return make_sweep(tmp_path_factory.mktemp("sweep") / "sweep", made)


def test_a_sweep_is_read_without_a_report(sweep: Path) -> None:
    results = ecrl.load(sweep)
    assert not (sweep / "report").exists()
    assert len(results.runs) == 8 and list(results.runs["seed"].unique()) == [2, 10]
    assert results.verdicts.groupby("run")["promise"].agg(list).iloc[0] == [
        "exactly-once",
        "same-trajectory",
    ]
    goodput = results.effects.query("measure == 'goodput'")
    assert ("ovl", "blk") in set(zip(goodput["arm"], goodput["base"], strict=True))


def test_steps_are_the_lines_of_the_ranks(sweep: Path) -> None:
    results = ecrl.load(str(sweep))
    struck = results.runs.query("arm == 'blk' and seed == 2").iloc[0]
    steps = results.steps[results.steps["run"] == struck["run"]]
    lines = [
        line
        for logs in load_records(RunLayout(sweep / struck["run"])).attempt_logs
        for _, log in sorted(logs.ranks.items())
        for line in log.events
    ]
    assert list(steps["loss"]) == [line.loss for line in lines] and list(steps["global_step"]) == [
        line.global_step for line in lines
    ]
    again = steps.query("rank == 0 and replayed")
    assert len(again) == struck["replayed_steps"]
    recoveries = results.recoveries[results.recoveries["run"] == struck["run"]]
    assert recoveries["seconds"].sum() > again["seconds"].sum() > 0


@pytest.mark.parametrize("frame", FRAMES)
def test_every_column_is_documented(sweep: Path, frame: str) -> None:
    named = re.findall(r"`([\w*]+)`", (ROOT / "docs" / "data.md").read_text(encoding="utf-8"))
    columns = list(getattr(ecrl.load(sweep), frame))
    assert columns and not [
        column for column in columns if not any(fnmatch(column, word) for word in named)
    ]


def test_what_has_no_verdict_is_judged_in_memory(tmp_path: Path) -> None:
    struck, reference = build_blk(tmp_path), build_ref(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert set(ecrl.load(struck.root, reference.root).runs["verdict"]) == {"valid"}
    assert set(ecrl.load(struck.root, judge=False).runs["verdict"]) == {"missing"}
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_that_cannot_be_read_is_a_row_with_its_reason(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep", [Plan("ref", kills=()), Plan("blk")])
    broken = next(folder for folder in sweep.iterdir() if "blk" in folder.name)
    (broken / "config.json").write_text("{")
    results = ecrl.load(sweep)
    assert (
        results.runs.set_index("run")
        .loc[broken.name, "left_out"]
        .startswith("its records cannot be read")
    )
    assert broken.name not in set(results.steps["run"])
    with pytest.raises(RunDirectoryError):
        ecrl.load(tmp_path / "nowhere")


def test_seeds_that_are_no_numbers_stay_text(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep", [Plan("ref", kills=())])
    manifest = (sweep / "manifest.csv").read_text().splitlines()
    (sweep / "manifest.csv").write_text(
        "\n".join([*manifest, "later,,digits,blk,any,pending,"]) + "\n"
    )
    assert list(ecrl.load(sweep).runs["seed"]) == ["1337", "any"]


def test_the_recorder_imports_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import ecrl;"
        " print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(ROOT / "src")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stdout.split()) - set(sys.stdlib_module_names) <= {"ecrl", "__main__"}
    assert ecrl.__version__ == ecrl_cli.__version__
    with pytest.raises(AttributeError, match="has no attribute 'sessions'"):
        _ = ecrl.sessions


def test_epochs_count_what_occurs_twice_and_what_is_missing(tmp_path: Path) -> None:
    struck, reference = build_blk(tmp_path), build_ref(tmp_path)
    log = reference.attempt(0).rank(0)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    third, fourth = lines[2], lines[3]
    third["sample_ids_hash"] = fourth["sample_ids_hash"]  # its shard, instead of its own
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    epochs = ecrl.load(struck.root, reference.root).epochs.set_index(["run", "epoch"])
    counts = epochs[["consumed", "duplicates", "missing", "extra"]].T.to_dict("list")
    assert counts["blk", 0] == counts["blk", 1] == [80, 0, 0, 0]  # ten steps of eight samples
    assert counts["blk", 2] == [32, 0, 0, 0]
    share = third["sample_ids_count"]
    assert counts["ref", 0] == [80, share, share, 0] and counts["ref", 1] == [80, 0, 0, 0]
    struck.dataset.unlink()
    assert ecrl.load(struck.root).epochs.empty  # where an epoch ends is not on record


def test_distances_are_those_of_compare_at_every_step_that_both_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    struck, reference = build_blk(tmp_path, bug_from=9), build_ref(tmp_path)
    found = ecrl.load(struck.root, reference.root).distances
    assert set(found["run"]) == {"blk"} and set(found["reference"]) == {"ref"}
    assert main(["compare", str(struck.root), str(reference.root), "--json"]) == 1
    due = {
        (step["global_step"], name): (apart["l2"], apart["differing"])
        for step in json.loads(capsys.readouterr().out)["steps"]
        for name, apart in step["components"].items()
        if name != "rng"
    }
    rows = found[found["component"] != "rng"].set_index(["global_step", "component"])
    assert {step for step, _ in due} == {12, 18, 24}
    assert rows[["l2", "differing"]].T.to_dict("list") == {key: list(v) for key, v in due.items()}
    assert all(l2 > 0 for l2, _ in due.values())
