"""What continuous integration is told: a test case per promise and gate, and an annotation for what
failed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml

from ecrl_cli import __version__
from ecrl_cli.cli.ci import FAILED, PASSED, SKIPPED, CiCase, Suite, github, junit, summary
from ecrl_cli.cli.main import main
from ecrl_cli.records.layout import RunLayout
from tests.runs.builder import build_blk, build_ref
from tests.runs.spoil import at_step, edit_lines
from tests.unit.test_report_studies import make_study


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    build_ref(tmp_path / "sweep")
    edit_lines(
        RunLayout(build_blk(tmp_path / "sweep").root).attempt(2).rank(1), at_step(21, loss=0.1)
    )
    return tmp_path / "sweep"


def states(file: Path) -> dict[tuple[str, str], str]:
    cases = ET.parse(file).getroot().iter("testcase")
    return {
        (case.get("classname", ""), case.get("name", "")): case[0].tag if len(case) else ""
        for case in cases
    }


def test_verify_tells_each_promise(
    sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(sweep), "--junit", str(tmp_path / "out.xml"), "--github"]) == 1
    found = states(tmp_path / "out.xml")
    assert (
        found["blk", "same-trajectory"] == "failure"
        and found["ref", "exactly-once"] == ""
        and found["ref", "same-trajectory"] == "skipped"
    )
    head = ET.parse(tmp_path / "out.xml").getroot()
    assert head.get("tests") == str(len(found)) and head.get("failures") == str(
        list(found.values()).count("failure")
    )
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("::")]
    assert any(
        line.startswith("::error title=blk%3A same-trajectory::") and "step 21" in line
        for line in told
    )
    assert not any("ref" in line.partition("::")[2].partition("::")[0] for line in told)


@pytest.mark.usefixtures("undrawn")
def test_report_tells_gates_and_verdicts(
    sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(sweep), "--junit", str(tmp_path / "out.xml"), "--github"]) == 1
    found = states(tmp_path / "out.xml")
    assert found["blk", "verdict"] == "failure" and found["ref", "verdict"] == "" and len(found) > 4
    assert "::error title=blk%3A verdict::invalid" in capsys.readouterr().err


@pytest.mark.usefixtures("undrawn")
def test_report_tells_the_gates_of_a_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A gate that failed, what was skipped, and a study that is not finished; exit code 1 is never
    without a case that says why.
    """
    kept, broken = (
        {"name": name, "passed": name == "holds", "message": f"it {name}"}
        for name in ("holds", "breaks")
    )
    toy = make_study(
        tmp_path / "toy", gates=[kept, broken], skips=[{"arm": "xfs", "reason": "no mkfs.xfs"}]
    )
    half = make_study(tmp_path / "half", gates=[kept], done=400, complete=False)
    assert (
        main(
            [
                "report",
                str(toy),
                str(half),
                "--out",
                str(tmp_path / "page"),
                "--junit",
                str(tmp_path / "out.xml"),
                "--github",
            ]
        )
        == 1
    )
    found = states(tmp_path / "out.xml")
    assert (
        found["toy", "holds"] == ""
        and found["toy", "breaks"] == "failure"
        and found["toy", "xfs"] == "skipped"
    )
    assert (
        found["half", "finished"] == "failure" and found["half", "holds"] == "" and len(found) == 5
    )
    told = capsys.readouterr().err
    assert (
        "::error title=toy%3A breaks::" in told
        and "::warning title=toy%3A xfs::skipped: no mkfs.xfs" in told
    )


def test_what_cannot_be_written_is_refused_before_anything_is_judged(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb in ("verify", "report"):
        assert main([verb, str(sweep), "--junit", "/nowhere/out.xml"]) == 2
        assert "--junit: '/nowhere/out.xml' cannot be written" in capsys.readouterr().err
    assert not RunLayout(sweep / "blk").verdict.exists()


def test_text_stays_text() -> None:
    """Of a stranger's run: neither XML nor a workflow command comes out of a name or a message."""
    cases = [
        CiCase("a,b:c\n::stop", 'p"<&', FAILED, "100% <b>\n::error::x\x1b"),
        CiCase("r", "q", PASSED, "kept"),
        CiCase("r", "s", SKIPPED, "unknown: why"),
    ]
    _, bad, good, open_ = ET.fromstring(junit(Suite("n"), cases).encode())
    assert (
        bad.get("name") == 'p"<&'
        and bad[0].get("message", "").startswith("100% <b>")
        and not len(good)
        and open_[0].tag == "skipped"
    )
    assert github(cases) == [
        '::error title=a%2Cb%3Ac%0A%3A%3Astop%3A p"<&::100%25 <b>%0A::error::x\\x1b',
        "::warning title=r%3A s::unknown: why",
    ]
    assert json.dumps(github(cases)).count("\\n") == 0


def test_the_suite_says_verdict_seconds_and_evidence(sweep: Path, tmp_path: Path) -> None:
    assert main(["verify", str(sweep), "--junit", str(tmp_path / "out.xml")]) == 1
    head = ET.parse(tmp_path / "out.xml").getroot()
    assert {each.get("name"): each.get("value") for each in head.iter("property")} == {
        "ecrl": __version__,
        "verdict": "invalid",
    }
    assert float(head.get("time", "0")) > 0
    (failure,) = (
        case[0]
        for case in head.iter("testcase")
        if (case.get("classname"), case.get("name")) == ("blk", "same-trajectory")
    )
    assert "step 21" in failure.get("message", "") and failure.text and "\n" in failure.text


def test_the_summary_of_a_step_has_what_did_not_pass_and_nothing_of_it_is_markup(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    assert main(["verify", str(sweep), "--junit", str(tmp_path / "out.xml")]) == 1
    assert not (tmp_path / "summary.md").exists(), "only where --github asks"
    assert main(["verify", str(sweep), "--github"]) == 1
    text = (tmp_path / "summary.md").read_text()
    assert (
        text.startswith("### ecrl verify: invalid\n")
        and "| failed | blk | same-trajectory | Broke promise: same-trajectory - " in text
    )
    rows = summary(Suite("n"), [CiCase("<b>|r", "p", FAILED, "a\n|b`", ("[x](y)",))]).splitlines()
    assert (
        rows[0] == "### n: invalid"
        and rows[4] == r"| failed | &lt;b&gt;\|r | p | a\\n\|b\`<br>\[x\](y) |"
    )


@pytest.mark.parametrize(
    ("code", "verdict"), [(0, "valid"), (1, "invalid"), (3, "unknown"), (2, "")]
)
def test_the_composite_action_gives_the_words_to_ecrl_and_its_answer_to_the_workflow(
    code: int, verdict: str, tmp_path: Path
) -> None:
    """With a stand-in for `ecrl`: inputs are words, never shell."""
    action = yaml.safe_load((Path(__file__).parents[2] / "action.yml").read_text(encoding="utf-8"))
    (step,) = (step for step in action["runs"]["steps"] if step.get("id") == "audit")
    ours = tmp_path / "bin" / "ecrl"
    ours.parent.mkdir()
    ours.write_text(
        f"#!{sys.executable}\nimport json, sys\nopen('words',"
        f" 'w').write(json.dumps(sys.argv[1:]))\nsys.exit({code})\n"
    )
    ours.chmod(0o755)
    (ours.parent / "python").symlink_to(sys.executable)
    given = {
        "COMMAND": "python train.py '$(touch hacked)' --out {dir}",
        "KEYS": "failure=kill 'failure.steps=[3]'",
        "FOLDER": "out",
    }
    environment = (
        os.environ
        | given
        | {
            "PATH": f"{ours.parent}:{os.environ['PATH']}",
            "GITHUB_OUTPUT": str(tmp_path / "output"),
        }
    )
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", step["run"]], cwd=tmp_path, env=environment, check=False
    )
    assert done.returncode == code and (tmp_path / "output").read_text() == f"verdict={verdict}\n"
    words = json.loads((tmp_path / "words").read_text())
    assert words[:4] == ["audit", "--github", "--junit", "ecrl-audit.xml"] and words[4:7] == [
        "failure=kill",
        "failure.steps=[3]",
        "run_dir=out",
    ]
    assert (
        words[7:] == ["--", "python", "train.py", "$(touch hacked)", "--out", "{dir}"]
        and not (tmp_path / "hacked").exists()
    )
