"""`ecrl report` of studies: what is shown is what result.json says, a damaged one is one line, and
no text in it becomes anything else.
"""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.cli.main import main
from ecrl_cli.config.codec import encode
from ecrl_cli.config.studies import Corruption, CrashPoints
from ecrl_cli.config.study import StudyConfig, study_id
from ecrl_cli.errors import EvidenceMissing, RecordError, RunDirectoryError
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.records.layout import RunLayout, StudyLayout
from ecrl_cli.report.build import report
from ecrl_cli.report.formats import proportion as shown_proportion
from ecrl_cli.storage.files import write_json
from ecrl_cli.studies.frame.result import (
    PROPORTION_COLUMNS,
    Figure,
    Findings,
    ResultColumn,
    ResultTable,
    Series,
    proportion,
)
from ecrl_cli.studies.frame.study import Skip
from tests.unit.report_runs import Plan, arms, judged_again, make_run, make_sweep
from tests.unit.test_report_page import HOSTILE, Page

MODES = ("unsafe", "atomic_nodirsync", "atomic_dirsync")
POINTS = (
    "half_part:model.safetensors",
    "after_part:model.safetensors",
    "before_commit",
    "after_root_sync",
)
ENVIRONMENT = {
    "kernel": "6.1.0",
    "ecrl": "0.1",
    "cpu": {"model": "A CPU", "logical": 2},
    "file_system": {"type": "ext4", "mount_point": "/"},
}


def findings(rows: int = 3) -> Findings:
    """A table and a figure of every kind."""
    counted = tuple(
        {"mode": mode, **proportion(k, 400)} for mode, k in zip(MODES, (312, 1, 0), strict=True)
    )
    kinds = tuple(
        {
            "what": f"row {n}",
            "n": n,
            "took": n / 3000,
            "size": n * 192_000,
            "more": n / 10 - 0.1,
            "is": n * 1.5,
        }
        for n in range(rows)
    )
    columns = (
        ResultColumn("what", "what"),
        ResultColumn("n", "n", "count"),
        ResultColumn("took", "median", "seconds"),
        ResultColumn("size", "payload", "bytes"),
    )
    columns += (
        ResultColumn("more", "against unsafe", "change"),
        ResultColumn("is", "ratio", "number"),
    )
    bars = tuple(
        Series(mode, (0.78, 0.1, 0.0, 0.2), (), (0.7, 0.05, 0.0, 0.1), (0.8, 0.2, 0.01, 0.3))
        for mode in MODES
    )
    stacked = tuple(
        Series(name, (10.0, 5.0, 3.0)) for name in ("new", "previous", "lost_ack", "silent_wrong")
    )
    spread = tuple(
        Series(mode, tuple(0.001 * (n + 1) ** 1.5 * (i + 1) for n in range(60)))
        for i, mode in enumerate(MODES)
    )
    line = Series(
        "every 0.1 s", tuple(float(n % 7) for n in range(50)), tuple(n / 10 for n in range(50))
    )
    band = Series("mean", (1.0, 2.0, 1.5), (0.0, 2.0, 4.0), (0.5, 1.0, 1.0), (1.5, 3.0, 2.0))
    return Findings(
        (
            ResultTable(
                "lost",
                "Acknowledged checkpoints lost",
                (ResultColumn("mode", "write mode"), *PROPORTION_COLUMNS),
                counted,
                "Both intervals.",
            ),
            ResultTable("kinds", "Every kind of number", columns, kinds),
        ),
        (
            Figure("rates", "Rate by point", "bars", "point", "share of trials", bars, POINTS),
            Figure(
                "outcomes", "How trials ended", "stacked", "write mode", "trials", stacked, MODES
            ),
            Figure("latency", "Latency", "cdf", "seconds", "share", spread, log_x=True),
            Figure(
                "disk",
                "Disk",
                "lines",
                "seconds",
                "transactions per second",
                (line, band),
                marks=(1.0, 3.0),
            ),
        ),
        (Gate("never wrong", True, "0 of 1,200 trials silently wrong"),),
        ("0 of 400 supports a rate below 0.75% (95%).",),
    )


def document(of: StudyConfig, found: Findings, **changes: Any) -> dict[str, Any]:
    """A result.json as the runner writes it."""
    said = {
        "schema_version": 1,
        "name": of.name,
        "study_id": study_id(of),
        "config": encode(of),
        "planned": 1200,
        "done": 1200,
        "complete": True,
        "seconds": 12.5,
        "skips": [],
        **encode(found),
    }
    return said | changes


def make_study(
    folder: Path, found: Findings | None = None, of: StudyConfig | None = None, **changes: Any
) -> Path:
    """A study's folder."""
    config, layout = of or StudyConfig(CrashPoints(trials=7)), StudyLayout(folder)
    folder.mkdir(parents=True)
    write_json(layout.study, {"schema_version": 1, "study_id": study_id(config), **encode(config)})
    write_json(layout.environment, ENVIRONMENT)
    write_json(layout.result, document(config, found or findings(), **changes))
    return folder


def text_of(page: Path) -> str:
    return " ".join(Page(page.read_text()).text.split())


def test_a_study_alone_has_a_page_a_csv_per_table_and_a_picture_per_figure(tmp_path: Path) -> None:
    made = report([make_study(tmp_path / "study")])
    folder = made.page.parent
    assert made.exit_code == 0 and folder == tmp_path / "study" / "report"
    assert sorted(p.name for p in folder.glob("*.csv")) == [
        "crash-points.kinds.csv",
        "crash-points.lost.csv",
    ]
    drawn = {
        f"crash-points.{name}.{kind}"
        for name in ("rates", "outcomes", "latency", "disk")
        for kind in ("png", "pdf")
    }
    assert {p.name for p in (folder / "figures").iterdir()} == drawn
    page = Page(made.page.read_text())
    assert (
        page.count("figure") == 4
        and sum(tag == "svg" and a.get("role") == "img" for tag, a in page.tags) == 4
    )
    links = {a["href"] for tag, a in page.tags if tag == "a" and "href" in a}
    assert all((folder / link).is_file() for link in links if link and not link.startswith("#"))
    assert {f"#{a['id']}" for _, a in page.tags if "id" in a} >= {
        link for link in links if link and link.startswith("#")
    }


@pytest.mark.usefixtures("undrawn")
def test_every_number_is_the_recorded_one(tmp_path: Path) -> None:
    made = report([make_study(tmp_path / "study")])
    table = findings().tables[0]
    with (made.page.parent / "crash-points.lost.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [{k: v if k == "mode" else float(v) for k, v in row.items()} for row in rows] == list(
        table.rows
    )
    shown = text_of(made.page)
    for row in table.rows:
        assert shown_proportion(row["rate"]) in shown
        assert f"{shown_proportion(row['cp_low'])} to {shown_proportion(row['cp_high'])}" in shown
    said = json.loads((made.page.parent / "report.json").read_text())["studies"][0]
    assert (
        said["tables"][0]["rows"] == list(table.rows)
        and said["study_id"]
        and said["exit_code"] == 0
    )


@pytest.mark.usefixtures("undrawn")
def test_the_page_answers_first_and_says_how_to_run_it_again(tmp_path: Path) -> None:
    shown = text_of(report([make_study(tmp_path / "study")]).page)
    assert shown.index("crash-points: every gate passed.") < shown.index(
        "Acknowledged checkpoints lost"
    )
    for words in (
        "1,200 of 1,200 trials, 1 of 1 gate passed, seed 1337",
        "0 of 400 supports",
        "ext4 on /",
        "Linux 6.1.0",
    ):
        assert words in shown
    assert "ecrl study study=crash-points seed=1337 study.trials=7 " in shown


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("changes", "code", "headline"),
    [
        ({}, 0, "every gate passed"),
        (
            {"skips": [{"arm": "loop", "reason": "no /dev/loop-control"}]},
            0,
            "every gate passed, but 1 arm was skipped",
        ),
        (
            {"gates": [{"name": "never wrong", "passed": False, "message": "2 wrong"}]},
            1,
            "1 of 1 gate failed",
        ),
        (
            {
                "done": 400,
                "complete": False,
                "gates": [{"name": "trials", "passed": False, "message": "400"}],
            },
            1,
            "400 of 1,200 trials done",
        ),
        ({"done": 400, "complete": False}, 1, "400 of 1,200 trials done"),
    ],
)
def test_the_exit_code_and_the_headline_are_the_gates(
    tmp_path: Path, changes: dict[str, Any], code: int, headline: str
) -> None:
    made = report([make_study(tmp_path / "study", **changes)])
    assert (
        made.exit_code
        == code
        == json.loads(made.page.with_name("report.json").read_text())["exit_code"]
    )
    shown = text_of(made.page)
    assert headline in shown and all(
        skip["reason"] in shown and skip["reason"] in made.text for skip in changes.get("skips", [])
    )
    assert all(gate["message"] in shown for gate in changes.get("gates", []))


@pytest.mark.usefixtures("undrawn")
def test_a_study_without_a_result_is_missing_evidence(tmp_path: Path) -> None:
    unfinished = make_study(tmp_path / "all" / "one")
    StudyLayout(unfinished).result.unlink()
    with pytest.raises(EvidenceMissing, match=r"no result\.json in one"):
        report([unfinished])
    assert not (unfinished / "report").exists()
    make_study(tmp_path / "all" / "two", of=StudyConfig(Corruption()))
    made = report([tmp_path / "all"])
    assert made.exit_code == 3 and "one: no result.json" in made.text
    make_study(tmp_path / "all" / "three", complete=False)
    assert report([tmp_path / "all"]).exit_code == 1


@pytest.mark.usefixtures("undrawn")
def test_a_folder_of_studies_is_all_of_them(tmp_path: Path) -> None:
    for seed in (1, 2):
        make_study(
            tmp_path / "all" / f"crash-points-s{seed}", of=StudyConfig(CrashPoints(), seed=seed)
        )
    make_study(tmp_path / "all" / "corruption", of=StudyConfig(Corruption()))
    made = report([tmp_path / "all", tmp_path / "all" / "corruption"], tmp_path / "out")
    names = ("corruption.lost", "crash-points-s1.lost", "crash-points-s2.lost")
    assert {p.name for p in made.page.parent.glob("*.lost.csv")} == {
        f"{name}.csv" for name in names
    }
    assert "Every gate of 3 studies passed." in text_of(made.page)
    assert len(re.findall(r"^c.*: 1,200 of 1,200 trials", made.text, re.MULTILINE)) == 3


@pytest.mark.usefixtures("undrawn")
def test_studies_are_further_sections_beside_runs(tmp_path: Path) -> None:
    study = make_study(
        tmp_path / "study", gates=[{"name": "never wrong", "passed": False, "message": "2 wrong"}]
    )
    made = report([make_sweep(tmp_path / "sweep", arms()), study], tmp_path / "out")
    shown = text_of(made.page)
    assert (
        made.exit_code == 1
        and "Every recovery was judged valid. crash-points: 1 of 1 gate failed." in shown
    )
    assert "116 ms in ref" in shown and "Acknowledged checkpoints lost" in shown
    assert {"runs.csv", "summary.csv", "crash-points.lost.csv"} <= {
        p.name for p in (tmp_path / "out").iterdir()
    }
    assert (
        made.text.count("gate failed: never wrong: 2 wrong") == 1
        and "goodput in committed steps" in made.text
    )


@pytest.mark.usefixtures("undrawn")
def test_a_folder_may_hold_runs_and_studies(tmp_path: Path) -> None:
    make_run(tmp_path / "outputs" / "a-run", Plan("clean", kills=(), strategy="none"))
    make_study(tmp_path / "outputs" / "a-study")
    shown = text_of(report([tmp_path / "outputs"]).page)
    assert "Made by ecrl report from the records of 1 run and 1 study." in shown


def test_a_folder_with_neither_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunDirectoryError, match="neither a run directory nor a study"):
        report([make_study(tmp_path / "study"), tmp_path / "empty"], tmp_path / "out")


@pytest.mark.usefixtures("undrawn")
def test_long_tables_fold_and_what_is_cut_is_named(tmp_path: Path) -> None:
    made = report([make_study(tmp_path / "study", findings(rows=450))])
    shown = text_of(made.page)
    assert (
        "Every kind of number, 450 rows" in shown
        and "50 more rows in crash-points.kinds.csv" in shown
    )
    assert "row 399" in shown and "row 400" not in shown
    assert "390 more rows in crash-points.kinds.csv" in (made.page.parent / "report.md").read_text()
    assert len((made.page.parent / "crash-points.kinds.csv").read_text().splitlines()) == 451


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    plain = findings()
    table = replace(
        plain.tables[0],
        name="../../x",
        title=HOSTILE,
        note=HOSTILE,
        columns=(ResultColumn("mode", HOSTILE), *PROPORTION_COLUMNS),
    )
    rows = tuple({**row, "mode": HOSTILE + "\x1b[31m\ud800"} for row in table.rows)
    figures = tuple(
        replace(
            f,
            name="../" + HOSTILE,
            title=HOSTILE,
            x_label=HOSTILE,
            categories=tuple(HOSTILE + c for c in f.categories),
        )
        for f in plain.figures
    )
    series = tuple(replace(s, label=HOSTILE + s.label) for s in plain.figures[0].series)
    found = Findings(
        (replace(table, rows=rows),) * 2,
        (replace(figures[0], series=series), *figures[1:]),
        (Gate(HOSTILE, False, HOSTILE),),
        (HOSTILE,),
    )
    config = {"seed": HOSTILE, "study": {"name": HOSTILE, "trials": HOSTILE}}
    made = report(
        [
            make_study(
                tmp_path / "study",
                found,
                name=HOSTILE,
                config=config,
                skips=[encode(Skip(HOSTILE, HOSTILE))],
            )
        ],
        tmp_path / "out",
    )
    page = Page(made.page.read_text())
    assert page.count("script") == 1 and page.count("img") == 0
    assert (
        page.text.count("<script>alert(1)</script>") >= 10 and "\x1b" not in page.text + made.text
    )
    lines = (tmp_path / "out" / "report.md").read_text().splitlines()
    # those are shown as code
    assert not [
        line for line in lines if "<script" in line and not line.startswith("    ecrl study ")
    ]
    assert {p.name for p in tmp_path.iterdir()} == {"study", "out"} and len(
        list((tmp_path / "out").glob("*.csv"))
    ) == 2
    assert len(list((tmp_path / "out" / "figures").iterdir())) == 8


DAMAGES: dict[str, dict[str, Any]] = {
    "version": {"schema_version": 2},
    "name": {"name": ["x"]},
    "planned": {"planned": "many"},
    "count": {"planned": 3, "done": 4},
    "seconds": {"seconds": float("nan")},
    "complete": {"complete": 1},
    "gate": {"gates": [{"name": "x", "passed": "yes", "message": ""}]},
    "tables": {"tables": {"a": 1}},
    "no columns": {"tables": [{"name": "a", "title": "", "columns": [], "rows": [{}]}]},
    "column kind": {
        "tables": [
            {
                "name": "a",
                "title": "",
                "columns": [{"key": "a", "label": "a", "kind": "html"}],
                "rows": [],
            }
        ]
    },
    "cell": {
        "tables": [
            {
                "name": "a",
                "title": "",
                "columns": [{"key": "a", "label": "a"}],
                "rows": [{"a": {"b": 1}}],
            }
        ]
    },
    "not a number": {
        "tables": [
            {
                "name": "a",
                "title": "",
                "columns": [{"key": "a", "label": "a"}],
                "rows": [{"a": float("nan")}],
            }
        ]
    },
    "huge": {
        "tables": [
            {
                "name": "a",
                "title": "",
                "columns": [{"key": "a", "label": "a", "kind": "count"}],
                "rows": [{"a": 10**400}],
            }
        ]
    },
    "figure kind": {"figures": [encode(Figure("a", "a", "pie", "", "", ()))]},
    "infinite": {
        "figures": [
            encode(Figure("a", "a", "lines", "", "", (Series("s", (float("inf"),), (1.0,)),)))
        ]
    },
    "lengths": {
        "figures": [encode(Figure("a", "a", "bars", "", "", (Series("s", (1.0,)),), ("a", "b")))]
    },
    "half interval": {
        "figures": [
            encode(Figure("a", "a", "bars", "", "", (Series("s", (1.0,), (), (1.0,)),), ("a",)))
        ]
    },
    "too many": {"notes": ["x"] * 10_000},
    "configuration": {"config": {"study": {"trials": {"a": [{}]}}}},
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_result_that_cannot_be_meant_is_one_line(tmp_path: Path, damage: str) -> None:
    study = make_study(tmp_path / "study", **DAMAGES[damage])
    with pytest.raises(RecordError, match=r"study/result\.json") as caught:
        report([study])
    assert len(caught.value.line()) < 400 and not (study / "report").exists()


@pytest.mark.usefixtures("undrawn")
def test_a_count_of_reachable_states_may_be_astronomical(tmp_path: Path) -> None:
    table = {
        "name": "a",
        "title": "",
        "note": "",
        "columns": [{"key": "a", "label": "a", "kind": "count"}],
        "rows": [{"a": 10**25}],
    }
    report([make_study(tmp_path / "study", tables=[table])])
    (found,) = (tmp_path / "study" / "report").glob("*.csv")
    assert found.read_text().split() == ["a", str(10**25)]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[1,",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' + b"9" * 5000 + b"}",
        b"{}",
    ],
)
def test_a_result_that_is_no_result_is_one_line(
    tmp_path: Path, data: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    study = make_study(tmp_path / "study")
    StudyLayout(study).result.write_bytes(data)
    assert main(["report", str(study)]) == 2
    said = capsys.readouterr()
    assert (
        not said.out
        and len(said.err.splitlines()) == 1
        and "E-record study/result.json: " in said.err
    )


@pytest.mark.parametrize(
    "key", ["schema_version", "name", "config", "planned", "tables", "gates", "notes", "skips"]
)
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    study = make_study(tmp_path / "study")
    said = json.loads(StudyLayout(study).result.read_text())
    StudyLayout(study).result.write_text(json.dumps({k: v for k, v in said.items() if k != key}))
    with pytest.raises(RecordError, match=key.replace("_", ".")):
        report([study])


ODD = (
    '{"cpu": [1], "gpus": [3, {"name": 1}], "packages": "x", "file_system": {"type": {}}, "kernel":'
    ' {"a": 1}, "ecrl": 7}'
)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, ODD])
def test_an_odd_environment_costs_nothing_but_itself(tmp_path: Path, text: str) -> None:
    study, run = (
        make_study(tmp_path / "all" / "study"),
        make_run(tmp_path / "all" / "run", Plan("ref", kills=())),
    )
    (study / "environment.json").write_text(text)
    assert "every gate passed" in text_of(report([study]).page)
    (run / "environment.json").write_text(ODD)
    judged_again(RunLayout(run))
    assert "Every run was judged valid" in text_of(report([tmp_path / "all"]).page)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0%"),
        (1, "100%"),
        (0.00004, "<0.01%"),
        (0.99996, ">99.99%"),
        (0.0015, "0.15%"),
        (0.9981, "99.81%"),
        (0.278, "27.8%"),
        (None, "-"),
    ],
)
def test_a_proportion_is_nought_only_if_it_is(value: float | None, expected: str) -> None:
    assert shown_proportion(value) == expected
