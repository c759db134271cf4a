"""`ecrl verify` and `ecrl report` of what is judged elsewhere: an audit's folder and a study's,
alone and among runs.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from ecrl_cli.cli.main import main
from tests.runs.builder import build_ref
from tests.unit.audit_recordings import change, healthy
from tests.unit.test_report_studies import make_study

Capture = pytest.CaptureFixture[str]


def broken(folder: Path) -> Path:
    healthy(folder)
    change(
        folder,
        2,
        lambda line: (
            line | {"losses": [9.0]} if line["type"] == "step" and line["step"] > 1 else line
        ),
    )
    return folder


def test_an_audit_alone_is_judged_and_its_page_written(tmp_path: Path, capsys: Capture) -> None:
    folder = broken(tmp_path / "audit")
    for verb in ("verify", "report"):
        assert main([verb, str(folder), "--junit", str(tmp_path / "out.xml")]) == 1
        text = capsys.readouterr().out
        assert (
            text.startswith("audit: invalid: differs from step 14")
            and f"page: {folder}/report/index.html" in text
        )
        assert "differs from step 14" in (folder / "report" / "index.html").read_text()
        cases = {
            case.get("name"): len(case)
            for case in ET.parse(tmp_path / "out.xml").getroot().iter("testcase")
        }
        assert cases["same trajectory [struck]"] == 1 and cases["exactly once [struck]"] == 0
    assert main(["verify", str(healthy(tmp_path / "well"))]) == 0


@pytest.mark.usefixtures("undrawn")
def test_audits_and_studies_stand_among_runs(tmp_path: Path, capsys: Capture) -> None:
    build_ref(tmp_path / "all")
    broken(tmp_path / "all" / "audit")
    make_study(
        tmp_path / "all" / "toy", gates=[{"name": "holds", "passed": True, "message": "it holds"}]
    )
    assert main(["verify", str(tmp_path / "all"), "--json"]) == 1
    answers = {
        Path(name).name: answer["status"]
        for name, answer in json.loads(capsys.readouterr().out).items()
    }
    assert answers == {"ref": "valid", "audit": "invalid", "toy": "valid"}
    assert main(["report", str(tmp_path / "all"), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    (audit,) = document["audits"].values()
    assert (
        audit["status"] == "invalid"
        and [row["run"] for row in document["runs"]] == ["ref"]
        and len(document["studies"]) == 1
    )


def test_a_study_is_verified_by_its_gates(tmp_path: Path, capsys: Capture) -> None:
    gates = [
        {"name": name, "passed": name == "holds", "message": f"it {name}"}
        for name in ("holds", "breaks")
    ]
    assert main(["verify", str(make_study(tmp_path / "toy", gates=gates))]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("toy: invalid (2 gates of a study)") and lines[1].split() == [
        "invalid",
        "breaks:",
        "it",
        "breaks",
    ]


def test_an_audit_that_cannot_be_judged_is_named_and_the_rest_is_judged(
    tmp_path: Path, capsys: Capture
) -> None:
    build_ref(tmp_path / "all")
    empty = tmp_path / "all" / "audit"
    empty.mkdir()
    (empty / "audit.json").write_text("{}")
    assert main(["verify", str(tmp_path / "all")]) == 3
    told = capsys.readouterr()
    assert "holds no recorded arm" in told.err and "ref: valid" in told.out
