"""The kept results hold: each experiment's commands can be given, its page is made from what is
kept, and what is kept can be judged by anybody.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from experiments import make as making
from experiments.__main__ import main
from experiments.make import Stopped, _keep, _result, judge, make
from experiments.pages import INDEX, Kept, _outcome, index, page
from experiments.registry import (
    DATA_WORD,
    RESULTS,
    ROOT,
    Experiment,
    ExperimentError,
    Registry,
    read,
)
from experiments.stamp import BUSY, Session, session, stamp
from experiments.tables import KeptTable
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ecrl_cli import __version__
from ecrl_cli.records.digests import source_sha256
from tests.conftest import run_ecrl
from tests.contract.test_docs_commands import CHECKED, blocks, check
from tests.unit.test_metadata import PROJECT

REGISTRY = read()
EXPERIMENTS = REGISTRY.experiments
KNOWN = subprocess.run(
    ["git", "-C", str(ROOT), "rev-list", "HEAD"], capture_output=True, text=True, check=False
).stdout.split()
HISTORY = len(KNOWN) > 100  # else a shallow clone, a copy without .git, or one commit made of all
COMMANDS = sorted(
    {
        words
        for each in EXPERIMENTS.values()
        for text in each.commands
        if (words := tuple(shlex.split(text))) not in CHECKED
    }
)
SMALL = (
    "supervision=zygote",
    "model.width=4",
    "target_steps=24",
    "checkpoint.every=6",
    "failure.steps=[4]",
)


def small(name: str = "small", *more: str) -> Experiment:
    command = " ".join(
        ["ecrl -m +suite=digits-cnn variant=ref,blk", *SMALL, *more, f"run_dir=outputs/{name}"]
    )
    return Experiment(name, "A small one", "that it works", (command,), records=True)


def spoil(journal: Path) -> None:
    """Another loss in the first line of a rank's log."""
    text = journal.read_text(encoding="utf-8")
    changed, count = re.subn(r'"loss": ?\d', '"loss":9', text, count=1)
    assert count == 1 and changed != text
    journal.write_text(changed, encoding="utf-8")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_of_an_experiment_can_be_given(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    check(words)


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda each: each.name)
def test_each_page_is_made_from_what_is_kept(experiment: Experiment) -> None:
    text = (experiment.folder / "README.md").read_text(encoding="utf-8")
    assert text == page(experiment), "python -m experiments --pages"


@pytest.mark.parametrize(
    "experiment",
    [each for each in EXPERIMENTS.values() if each.is_study and each.figures],
    ids=lambda each: each.name,
)
def test_a_figure_that_a_study_lists_is_one_that_its_report_draws(experiment: Experiment) -> None:
    """A name that is spelt otherwise would leave the page without it, and nobody would know."""
    kept = Kept.of(experiment.folder)
    if kept.stamp and experiment.figures != Experiment.figures:
        assert [
            name
            for name in experiment.figures
            if not (experiment.folder / "figures" / f"{name}.png").exists()
        ] == []


def test_the_table_of_experiments_is_made_from_what_is_kept() -> None:
    assert INDEX.read_text(encoding="utf-8") == index(REGISTRY), "python -m experiments --pages"


def test_a_kept_table_is_shown_in_units(tmp_path: Path) -> None:
    (tmp_path / "arms.csv").write_text(
        "arm,kind,stall,share,bytes,n\nblk,a|b,0.0152395,0.36666,816539,12500\novl,c,,0,44000000,3\nold,d,1,1,1,1\n"
    )
    columns = {
        "arm": "arm",
        "kind": "kind",
        "stall": "stall (ms)",
        "share": "share (%)",
        "bytes": "bytes (MB)",
        "n": "runs (all)",
    }
    assert KeptTable("arms.csv", "Arms", columns, where={"kind": "a|b"}).markdown(tmp_path) == [
        "**Arms** (`arms.csv`)",
        "",
        "| arm | kind | stall (ms) | share (%) | bytes (MB) | runs (all) |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
        "| blk | a\\|b | 15.24 | 36.67 | 0.8165 | 12,500 |",
        "",
    ]
    others = KeptTable("arms.csv", "Arms", columns).markdown(tmp_path)[5:]
    assert others == [
        "| ovl | c | - | 0 | 44 | 3 |",
        "| old | d | 1,000 | 100 | 1e-06 | 1 |",
        "",
    ]


@pytest.mark.parametrize(
    "experiment",
    [each for each in EXPERIMENTS.values() if (each.folder / "result.json").exists()],
    ids=lambda each: each.name,
)
def test_what_is_kept_was_made_by_committed_code_and_has_no_broken_verdict(
    experiment: Experiment,
) -> None:
    kept = Kept.of(experiment.folder)
    assert re.fullmatch(r"[0-9a-f]{40}", kept.stamp["commit"]), "made by changes that no commit has"
    assert not kept.verdicts["invalid"] and not kept.verdicts["unknown"]


@pytest.mark.skipif(not HISTORY, reason="the history is not here")
@pytest.mark.parametrize(
    "experiment",
    [each for each in EXPERIMENTS.values() if (each.folder / "stamp.json").exists()],
    ids=lambda each: each.name,
)
def test_the_commit_that_made_it_is_one_of_this_history(experiment: Experiment) -> None:
    """Anybody can check it out; one of a branch that was given up would be gone."""
    commit = json.loads((experiment.folder / "stamp.json").read_text(encoding="utf-8"))["commit"]
    assert commit in KNOWN


KEPT_RECORDS = [each for each in EXPERIMENTS.values() if (each.folder / "records.tar.xz").exists()]


@pytest.mark.parametrize("experiment", KEPT_RECORDS, ids=lambda each: each.name)
def test_kept_runs_are_judged_by_the_commands_of_their_page(
    experiment: Experiment, tmp_path: Path
) -> None:
    """By today's `ecrl verify`, to what the page says; and a changed byte of one is seen."""
    *_, (_, _, body) = blocks(experiment.folder / "README.md")
    made, unpacked, judged = (shlex.split(line) for line in body.splitlines())
    unpacked[2] = str(experiment.folder.parents[2] / unpacked[2])
    for command in (made, unpacked):
        subprocess.run(command, cwd=tmp_path, check=True)
    found = json.loads(run_ecrl(tmp_path, *judged[1:], "--json").stdout)
    assert {Path(name).name: verdict["status"] for name, verdict in found.items()} == json.loads(
        (experiment.folder / "result.json").read_text()
    )["verdicts"]
    assert set(Kept.of(experiment.folder).verdicts) == {"valid"}
    line = next((tmp_path / judged[2]).glob("*-blk-*/logs/attempt-00/rank1.jsonl"))
    spoil(line)
    run_ecrl(tmp_path, "verify", str(line.parents[2]), check=1)


def test_kept_runs_are_small() -> None:
    assert all((each.folder / "records.tar.xz").stat().st_size < 750_000 for each in KEPT_RECORDS)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small experiment, made from nothing."""
    root = tmp_path_factory.mktemp("made")
    assert make(small(), root / "outputs", "", root / "results") == 0
    return root


def test_an_experiment_is_run_verified_reported_and_kept(made: Path) -> None:
    kept = made / "results" / "small"
    result, stamped = (
        json.loads((kept / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("result", "stamp")
    )
    assert sorted(result["verdicts"].values()) == ["valid", "valid"] and result["promises"][
        "exactly-once"
    ] == {"valid": 2}
    assert stamped.keys() == {
        "schema_version",
        "ecrl",
        "commit",
        "source_sha256",
        "machine",
        "sessions",
    }
    assert stamped["ecrl"] == __version__
    (only,) = stamped["sessions"]
    assert only["seconds"] > 0
    assert {"runs.csv", "summary.csv", "environment.json", "records.tar.xz"} <= {
        path.name for path in kept.iterdir()
    }
    with tarfile.open(kept / "records.tar.xz") as archive:
        packed = {Path(name).name for name in archive.getnames()}
    assert {"metrics.json", "seal.json", "MANIFEST.json", "rank0.jsonl"} <= packed and not {
        "verdict.json",
        ".lock",
        ".hydra",
        "report",
    } & packed
    assert sorted(path.name for path in (made / "results").iterdir()) == ["small"], (
        "nothing half-made is left"
    )


def test_what_is_kept_lies_where_the_report_has_it_and_what_it_lacks_comes_from_the_sweep(
    tmp_path: Path,
) -> None:
    report, sweep, new = (tmp_path / name for name in ("report", "sweep", "new"))
    there = {
        report: (
            "runs.csv",
            "shown.csv",
            "other.csv",
            "figures/gain.pdf",
            "figures/gain.png",
            "figures/other.png",
        ),
        sweep: ("manifest.csv", "runs.csv"),
    }
    for folder, names in there.items():
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(folder.name, encoding="utf-8")
    table = KeptTable("shown.csv", "Of a study beside the runs", {"arm": "arm"})
    experiment = replace(
        small(),
        keeps=("manifest.csv", "figures/gain.pdf", "not-there.csv"),
        figures=("gain", "not-there"),
        tables=(table,),
    )
    _keep(experiment, report, [sweep], new)
    kept = {
        str(path.relative_to(new)): path.read_text(encoding="utf-8")
        for path in new.rglob("*")
        if path.is_file()
    }
    assert kept == {
        "runs.csv": "report",
        "manifest.csv": "sweep",
        "figures/gain.pdf": "report",
        "figures/gain.png": "report",
        "shown.csv": "report",
    }


def test_a_sweep_and_a_study_are_kept_as_one(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs have verdicts and the study gates."""
    for name in ("small", "small.sessions.jsonl"):
        subprocess.run(
            [
                "cp",
                "-a",
                str(made / "outputs" / name),
                str(tmp_path / name.replace("small", "mixed")),
            ],
            check=True,
        )
    assert make(WITH_A_STUDY, tmp_path, "", tmp_path / "results") == 0
    monkeypatch.setattr(Experiment, "folder", tmp_path / "results" / "mixed")
    kept = Kept.of(tmp_path / "results" / "mixed")
    assert (kept.runs, kept.judged) == ("2 runs, 66 trials", "2 valid, 3 of 3 gates")
    assert "\necrl verify outputs/mixed\necrl report outputs/mixed outputs/mixed-study\n" in page(
        WITH_A_STUDY
    )


def test_made_again_it_goes_on_and_names_two_sessions(made: Path) -> None:
    def finished() -> dict[str, int]:
        return {
            str(path): path.stat().st_mtime_ns
            for path in (made / "outputs").glob("small/*/seal.json")
        }

    before = finished()
    assert make(small(), made / "outputs", "", made / "results") == 0
    assert finished() == before and len(before) == 2
    assert (
        len(
            json.loads((made / "results" / "small" / "stamp.json").read_text(encoding="utf-8"))[
                "sessions"
            ]
        )
        == 2
    )


def test_the_page_says_what_is_kept(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = small()
    monkeypatch.setattr(Experiment, "folder", made / "results" / "small")
    monkeypatch.setattr("experiments.pages.ROOT", made)
    text = page(experiment)
    assert (
        "| runs | 2 runs |" in text
        and "| verdicts | 2 valid |" in text
        and f"| made with | ecrl {__version__} at `" in text
    )
    assert (
        "| exactly-once | 2 | 0 | 0 | 0 |" in text
        and "tar -xf results/small/records.tar.xz -C outputs/small-records" in text
    )


def test_an_invalid_run_is_kept_and_the_exit_code_says_so(made: Path, tmp_path: Path) -> None:
    subprocess.run(["cp", "-a", str(made / "outputs"), str(tmp_path)], check=True)
    spoil(next((tmp_path / "outputs").glob("small/*-blk-*/logs/attempt-00/rank1.jsonl")))
    assert make(small(), tmp_path / "outputs", "", tmp_path / "results") == 1
    result = json.loads(
        (tmp_path / "results" / "small" / "result.json").read_text(encoding="utf-8")
    )
    assert sorted(result["verdicts"].values()) == ["invalid", "valid"]
    assert any(each["gate"] == "verified" for each in result["failed_gates"])


def edit_stamp(kept: Path, **changes: str) -> dict[str, Any]:
    """The stamp of `kept`, with keys changed."""
    path = kept / "stamp.json"
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps(document), encoding="utf-8")
    return document


def test_kept_runs_are_judged_anew(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is spoilt meanwhile shows that they are; what the machine did when they were made
    stays.
    """
    subprocess.run(
        ["cp", "-a", *(str(made / name) for name in ("outputs", "results")), str(tmp_path)],
        check=True,
    )
    kept = tmp_path / "results" / "small"
    before = edit_stamp(kept)
    assert judge(small(), tmp_path / "outputs", tmp_path / "results") == 0
    after = json.loads((kept / "stamp.json").read_text(encoding="utf-8"))
    assert {key: value for key, value in after.items() if key != "judged"} == before
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", after["judged"])
    dirty = after["judged"].removesuffix("-dirty") + "-dirty"
    (kept / "stamp.json").write_text(json.dumps(after | {"judged": dirty}), encoding="utf-8")
    monkeypatch.setattr(Experiment, "folder", kept)
    monkeypatch.setattr("experiments.pages.ROOT", tmp_path)
    assert f"| verdicts | 2 valid, judged anew at `{dirty[:10]}-dirty` |" in page(small())
    (kept / "stamp.json").write_text(json.dumps(after), encoding="utf-8")
    spoil(next((tmp_path / "outputs").glob("small/*-blk-*/logs/attempt-00/rank1.jsonl")))
    assert judge(small(), tmp_path / "outputs", tmp_path / "results") == 1
    assert sorted(
        json.loads((kept / "result.json").read_text(encoding="utf-8"))["verdicts"].values()
    ) == ["invalid", "valid"]


def test_other_runs_than_those_kept_are_not_judged_in_their_place(
    made: Path, tmp_path: Path
) -> None:
    subprocess.run(["cp", "-a", str(made / "results"), str(tmp_path)], check=True)
    before = edit_stamp(tmp_path / "results" / "small", source_sha256="of other runs")
    with pytest.raises(
        ExperimentError, match=r"the runs in .* are not those that are kept; make it anew"
    ):
        judge(small(), made / "outputs", tmp_path / "results")
    assert (
        json.loads((tmp_path / "results" / "small" / "stamp.json").read_text(encoding="utf-8"))
        == before
    )
    with pytest.raises(ExperimentError, match="small: nothing is kept; make it"):
        judge(small(), made / "outputs", tmp_path / "nowhere")


ENDS_EARLY = """
import os, sys
from ecrl_cli.cli.main import main
if sys.argv[1] != {verb!r}:
    sys.exit(main())
os.kill(os.getpid(), -{code}) if {code} < 0 else sys.exit({code})
"""


@pytest.mark.parametrize(
    ("verb", "code", "error", "said"),
    [
        ("-m", 130, Stopped, "130"),
        ("-m", 143, Stopped, "143"),
        (
            "-m",
            2,
            ExperimentError,
            (
                "small: nothing was kept: exit code 2: the command was refused, for the reason"
                " above: ecrl -m "
            ),
        ),
        (
            "-m",
            8,
            ExperimentError,
            (
                "small: nothing was kept: exit code 8: the command was refused, for the reason"
                " above: ecrl -m "
            ),
        ),
        ("-m", 1, ExperimentError, "small: nothing was kept: exit code 1: the command failed; "),
        ("-m", 5, ExperimentError, "small: nothing was kept: exit code 5: the command failed; "),
        ("-m", 7, ExperimentError, "small: nothing was kept: exit code 7: the command failed; "),
        ("-m", 70, ExperimentError, "small: nothing was kept: exit code 70: the command failed; "),
        (
            "-m",
            -9,
            ExperimentError,
            "small: nothing was kept: exit code -9: the command failed; .*: ecrl -m ",
        ),
        ("verify", 130, Stopped, "130"),
        (
            "verify",
            -9,
            ExperimentError,
            "small: nothing was kept: exit code -9: the command failed; .*: ecrl verify ",
        ),
        ("report", 130, Stopped, "130"),
        ("report", 143, Stopped, "143"),
        (
            "report",
            5,
            ExperimentError,
            "small: nothing was kept: exit code 5: the command failed; .*: ecrl report ",
        ),
    ],
)
def test_what_is_stopped_refused_or_fails_keeps_nothing_and_leaves_what_was_kept(
    verb: str,
    code: int,
    error: type[Exception],
    said: str,
    made: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of two runs is there to be judged and kept in place of both."""
    subprocess.run(
        ["cp", "-a", *(str(made / name) for name in ("outputs", "results")), str(tmp_path)],
        check=True,
    )
    shutil.rmtree(next((tmp_path / "outputs" / "small").glob("*-ref-*")))
    monkeypatch.setattr(
        making, "ECRL", (sys.executable, "-c", ENDS_EARLY.format(verb=verb, code=code))
    )
    if verb != "-m":
        monkeypatch.setattr(making, "_run", lambda *given: [])
    before = (tmp_path / "results" / "small" / "stamp.json").read_bytes()
    sessions = (tmp_path / "outputs" / "small.sessions.jsonl").read_text(encoding="utf-8")
    with pytest.raises(error, match=said):
        make(small(), tmp_path / "outputs", "", tmp_path / "results")
    assert (tmp_path / "results" / "small" / "stamp.json").read_bytes() == before
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["small"]
    after = (
        (tmp_path / "outputs" / "small.sessions.jsonl")
        .read_text(encoding="utf-8")
        .removeprefix(sessions)
    )
    assert len(after.splitlines()) == (verb == "-m"), "the time of a stopped session counts"


def test_a_study_that_has_lost_a_worker_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with 1, as one that failed a gate."""
    folder = tmp_path / "outputs" / "study"
    run_ecrl(tmp_path, "study", "study=compat", f"run_dir={folder}")
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    (folder / "result.json").write_text(
        json.dumps(result | {"complete": False, "done": 1}), encoding="utf-8"
    )
    monkeypatch.setattr(
        making, "ECRL", (sys.executable, "-c", ENDS_EARLY.format(verb="study", code=1))
    )
    with pytest.raises(
        ExperimentError,
        match="study: not all trials of compat have ended; the same command goes on from here",
    ):
        make(STUDY, tmp_path / "outputs", "", tmp_path / "results")
    assert list((tmp_path / "results").iterdir()) == []


def test_a_run_that_cannot_be_judged_is_kept_as_unknown(made: Path, tmp_path: Path) -> None:
    subprocess.run(
        ["cp", "-a", *(str(made / name) for name in ("outputs", "results")), str(tmp_path)],
        check=True,
    )
    unreadable = next((tmp_path / "outputs" / "small").glob("*-ref-*"))
    (unreadable / "config.json").unlink()
    assert judge(small(), tmp_path / "outputs", tmp_path / "results") == 1, "the gate `verified`"
    result = json.loads(
        (tmp_path / "results" / "small" / "result.json").read_text(encoding="utf-8")
    )
    assert result["verdicts"][unreadable.name] == "unknown"
    assert result["promises"]["exactly-once"] == {"valid": 1}


def test_a_study_of_the_runs_before_it_reads_them_where_they_were_made(tmp_path: Path) -> None:
    study = (
        "ecrl study study=recovery-overhead study.source=outputs/small"
        " run_dir=outputs/small-overhead"
    )
    both = replace(
        small(),
        commands=(*small().commands, study, "ecrl -m dataset.root=DIR run_dir=outputs/images"),
    )
    (*_, of_runs), of_study, of_images = both.given(tmp_path, "/images")
    assert of_runs == f"run_dir={tmp_path}/small"
    assert of_study == [
        "study",
        "study=recovery-overhead",
        f"study.source={tmp_path}/small",
        f"run_dir={tmp_path}/small-overhead",
    ]
    assert of_images == ["-m", "dataset.root=/images", f"run_dir={tmp_path}/images"]


TAKES_ITS_TIME = """
import os, signal, sys
def save(number, frame):
    print("saved", file=open("saved", "w"))
    sys.exit(128 + number)
signal.signal(signal.{name}, save)
os.kill(os.getppid(), signal.{name})
while True:
    signal.pause()
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_stop_is_handed_on_and_waited_for(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command asks its parent to stop, as Ctrl-C or a scheduler does, and has something to do
    before it ends.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(making, "ECRL", (sys.executable, "-c", TAKES_ITS_TIME.format(name=name)))
    with pytest.raises(Stopped):
        make(small(), tmp_path / "outputs", "", tmp_path / "results")
    assert (tmp_path / "saved").exists() and not (tmp_path / "results").exists()


def test_real_images_are_asked_for_before_anything_is_run(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="small: needs real images: add DATA=DIR"):
        make(small("small", DATA_WORD), tmp_path / "outputs", "", tmp_path / "results")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_experiment_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exp5"]) == 2
    assert capsys.readouterr().err.startswith(
        "experiments: RESULTS=exp5: no such experiment; there are quickstart, "
    )


def test_everything_is_all_that_this_kind_of_machine_can_run() -> None:
    registry = Registry({"one": small("one"), "two": replace(small("two"), needs="a GPU")})
    assert [each.name for each in registry.chosen(["all"])] == ["one"]
    assert [each.name for each in registry.chosen(["two"])] == ["two"]


WITH_A_STUDY = replace(
    small("mixed"),
    commands=(*small("mixed").commands, "ecrl study study=compat run_dir=outputs/mixed-study"),
    records=False,
)
STUDY = Experiment(
    "study", "A study", "that it works", ("ecrl study study=compat run_dir=outputs/study",)
)


def test_what_a_study_notes_of_its_numbers_is_kept_and_stands_on_the_page() -> None:
    told = {
        "name": "compat",
        "gates": [],
        "planned": 3,
        "done": 3,
        "notes": ["Three trials say little."],
        "tables": [],
    }
    result = _result({"headline": "", "sentences": [], "gates": {}, "studies": [told]}, {})
    assert "- Three trials say little." in _outcome(STUDY, Kept(None, {}, result, Counter()))


def test_pinned_versions_are_those_of_quickstart_and_leave_no_dependency_out() -> None:
    lines = (RESULTS / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {
        canonicalize_name(name): version
        for name, _, version in (line.partition("==") for line in lines if not line.startswith("#"))
    }
    assert all(pinned.values())
    made_with = json.loads(
        (RESULTS / "quickstart" / "environment.json").read_text(encoding="utf-8")
    )["packages"]
    assert {name: pinned[canonicalize_name(name)] for name in made_with} == made_with, (
        "write it anew: python -m pip freeze --exclude-editable"
    )
    for wanted in map(
        Requirement, [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["train"]]
    ):
        assert wanted.specifier.contains(pinned[canonicalize_name(wanted.name)]), wanted


def git(folder: Path, *words: str) -> None:
    subprocess.run(
        ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a", *words],
        check=True,
        capture_output=True,
    )


@pytest.mark.parametrize(
    ("changed_file", "found"),
    [("docs/page.md", "abc"), ("src/a.py", "abc-dirty"), ("conf/a.yaml", "abc-dirty")],
)
def test_a_result_is_of_uncommitted_code_only_where_code_is_uncommitted(
    changed_file: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was kept just before changes the tree too."""
    for name in ("docs/page.md", "src/a.py", "conf/a.yaml"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("as committed", encoding="utf-8")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "all")
    (tmp_path / changed_file).write_text("changed", encoding="utf-8")
    monkeypatch.setattr("experiments.stamp.ROOT", tmp_path)
    environment = {
        "git_revision": "abc-dirty",
        "source_sha256": source_sha256(),
        "ecrl": "1",
        "memory_bytes": 1,
        "gpus": [],
    }
    assert stamp(environment | {"cpu": {"model": "a", "logical": 2}}, [])["commit"] == found


@pytest.mark.parametrize(("others", "busy"), [(BUSY / 2, False), (2 * BUSY, True)])
def test_a_busy_machine_is_said_on_the_page(
    others: float, busy: bool, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["cp", "-a", str(made / "results" / "small"), str(tmp_path)], check=True)
    monkeypatch.setattr(Experiment, "folder", tmp_path / "small")
    stamped: dict[str, Any] = json.loads(
        (tmp_path / "small" / "stamp.json").read_text(encoding="utf-8")
    )
    stamped["sessions"] = [each | {"others": others} for each in stamped["sessions"]]
    (tmp_path / "small" / "stamp.json").write_text(json.dumps(stamped), encoding="utf-8")
    (tmp_path / "small" / "records.tar.xz").unlink()
    assert ("**seconds and goodput here are of a busy machine" in page(small())) is busy


def test_own_work_is_not_other_work() -> None:
    """What a child burns is the session's own, and it is of this session alone."""
    kept: list[Session] = []
    burn = [
        sys.executable,
        "-c",
        "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass",
    ]
    with session(kept):
        subprocess.run(burn, check=True)
    (found,) = kept
    assert found.seconds >= 0.5 and 0 <= found.others <= 1
