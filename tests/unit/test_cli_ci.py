"""What continuous integration is told: a test case per promise and gate, and an annotation for what failed."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from ecrl_cli.cli.ci import FAILED, PASSED, SKIPPED, Case, github, junit
from ecrl_cli.cli.main import main
from ecrl_cli.records.layout import RunLayout
from tests.runs.builder import build_blk, build_ref
from tests.runs.spoil import at_step, edit_lines
from tests.unit.test_report_studies import make_study


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    build_ref(tmp_path / "sweep")
    edit_lines(RunLayout(build_blk(tmp_path / "sweep").root).attempt(2).rank(1), at_step(21, loss=0.1))
    return tmp_path / "sweep"


def states(file: Path) -> dict[tuple[str, str], str]:
    cases = ET.parse(file).getroot().iter("testcase")
    return {(case.get("classname", ""), case.get("name", "")): case[0].tag if len(case) else "" for case in cases}


def test_verify_tells_each_promise(sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(sweep), "--junit", str(tmp_path / "out.xml"), "--github"]) == 1
    found = states(tmp_path / "out.xml")
    assert found["blk", "same-trajectory"] == "failure" and found["ref", "exactly-once"] == "" and found["ref", "same-trajectory"] == "skipped"
    head = ET.parse(tmp_path / "out.xml").getroot()
    assert head.get("tests") == str(len(found)) and head.get("failures") == str(list(found.values()).count("failure"))
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("::")]
    assert any(line.startswith("::error title=blk%3A same-trajectory::") and "step 21" in line for line in told)
    assert not any("ref" in line.partition("::")[2].partition("::")[0] for line in told)


@pytest.mark.usefixtures("undrawn")
def test_report_tells_gates_and_verdicts(sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(sweep), "--junit", str(tmp_path / "out.xml"), "--github"]) == 1
    found = states(tmp_path / "out.xml")
    assert found["blk", "verdict"] == "failure" and found["ref", "verdict"] == "" and len(found) > 4
    assert "::error title=blk%3A verdict::invalid" in capsys.readouterr().err


@pytest.mark.usefixtures("undrawn")
def test_report_tells_the_gates_of_a_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A gate that failed, what was skipped, and a study that is not finished; exit code 1 is never without a case that says why."""
    kept, broken = ({"name": name, "passed": name == "holds", "message": f"it {name}"} for name in ("holds", "breaks"))
    toy = make_study(tmp_path / "toy", gates=[kept, broken], skips=[{"arm": "xfs", "reason": "no mkfs.xfs"}])
    half = make_study(tmp_path / "half", gates=[kept], done=400, complete=False)
    assert main(["report", str(toy), str(half), "--out", str(tmp_path / "page"), "--junit", str(tmp_path / "out.xml"), "--github"]) == 1
    found = states(tmp_path / "out.xml")
    assert found["toy", "holds"] == "" and found["toy", "breaks"] == "failure" and found["toy", "xfs"] == "skipped"
    assert found["half", "finished"] == "failure" and found["half", "holds"] == "" and len(found) == 5
    told = capsys.readouterr().err
    assert "::error title=toy%3A breaks::" in told and "::warning title=toy%3A xfs::skipped: no mkfs.xfs" in told


def test_what_cannot_be_written_is_refused_before_anything_is_judged(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("verify", "report"):
        assert main([verb, str(sweep), "--junit", "/nowhere/out.xml"]) == 2
        assert "--junit: '/nowhere/out.xml' cannot be written" in capsys.readouterr().err
    assert not RunLayout(sweep / "blk").verdict.exists()


def test_text_stays_text() -> None:
    """Of a stranger's run: neither XML nor a workflow command comes out of a name or a message."""
    cases = [
        Case("a,b:c\n::stop", 'p"<&', FAILED, "100% <b>\n::error::x\x1b"),
        Case("r", "q", PASSED, "kept"),
        Case("r", "s", SKIPPED, "unknown: why"),
    ]
    (bad, good, open_) = ET.fromstring(junit("n", cases).encode())
    assert bad.get("name") == 'p"<&' and bad[0].get("message", "").startswith("100% <b>") and not len(good) and open_[0].tag == "skipped"
    assert github(cases) == ['::error title=a%2Cb%3Ac%0A%3A%3Astop%3A p"<&::100%25 <b>%0A::error::x\\x1b', "::warning title=r%3A s::unknown: why"]
    assert json.dumps(github(cases)).count("\\n") == 0
