"""`ecrl audit DIR --repro`: a script that shows a broken promise again, where the recordings differ
first, and a draft of a report.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.audit.components import judged_arm
from ecrl_cli.audit.plan import planned_arms
from ecrl_cli.audit.records import read_arm
from ecrl_cli.cli.audit import audit
from ecrl_cli.config.audit import AuditConfig, AuditFailure, AuditKeys
from ecrl_cli.config.codec import encode
from ecrl_cli.errors import ConfigError, EvidenceMissing
from tests.unit.audit_recordings import change, healthy

COMMAND = ["python", "train.py", "--out", "{dir}", "--name", "it's two words"]
CONFIG = AuditConfig(
    AuditKeys(resume="--resume {latest:*.pt}", references=3, own_dir=True, cold=True),
    AuditFailure("kill", ("11", "13.save:step-#.pt:torn"), 1),
    run_dir="elsewhere",
)


def recorded(folder: Path, broken: bool = True) -> Path:
    """An audit of which the arm `struck` reads other samples after its second restart."""
    healthy(folder)

    def other_samples(line: dict[str, Any]) -> dict[str, Any]:
        return line | {"ids": [line["ids"][0], 31]} if line["type"] == "batch" else line

    if broken:
        change(folder, 2, other_samples)
    document = {"command": COMMAND, "config": encode(CONFIG), "plan": []}
    (folder / "audit.json").write_text(json.dumps(document))
    return folder


def planned(folder: Path, *steps: int, happened: int) -> None:
    """Say in `folder`, an arm, that a death was planned at each step; the first ones happened."""
    kill = {"kind": "kill", "rank": 0, "moment": "before"}
    faults = [kill | {"index": index, "step": step} for index, step in enumerate(steps)]
    told = json.loads((folder / "arm.json").read_text())
    (folder / "arm.json").write_text(json.dumps(told | {"strikes": faults}))
    (path,) = (folder / "attempt-00").glob("rank0-*.jsonl")
    lines = [json.dumps(fault | {"type": "strike"}) for fault in faults[:happened]]
    path.write_text(path.read_text() + "\n".join(lines) + "\n")


def run_again(script: Path, statuses: list[str]) -> subprocess.CompletedProcess[str]:
    """`script`, with an `ecrl` beside it that says these statuses one after the other."""
    tools = script.parent / "tools"
    tools.mkdir()
    findings = [
        {"promise": "exactly once", "arm": "struck", "status": status, "message": "other samples"}
        for status in statuses
    ]
    for number, finding in enumerate(findings, start=1):
        (tools / f"{number}.json").write_text(json.dumps({"findings": [finding]}))
    (tools / "ecrl").write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" > {tools}/words\n'
        f"for n in 1 2 3; do\n  answer={tools}/$n.json\n"
        "  if [ -e $answer ]; then cat $answer; rm $answer; exit 1; fi\ndone\n"
    )
    (tools / "ecrl").chmod(0o755)
    (tools / "python").write_text("#!/bin/sh\necho torch==0.0\n")
    (tools / "python").chmod(0o755)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", str(script)], env={**os.environ, "PATH": path}, capture_output=True, text=True
    )


def test_the_script_runs_the_arm_with_the_keys_of_the_audit(tmp_path: Path) -> None:
    assert audit([str(recorded(tmp_path / "a")), "--repro"]) == 1
    script = tmp_path / "a" / "repro" / "struck" / "again.sh"
    done = run_again(script, ["broken"] * 3)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "broken 3 of 3 times"
    assert (script.parent / "versions.txt").read_text() == "torch==0.0\n"
    words = (script.parent / "tools" / "words").read_text().splitlines()
    assert words == [
        "audit",
        "--json",
        "audit.own_dir=true",
        "audit.references=3",
        "audit.resume=--resume {latest:*.pt}",
        "failure=kill",
        "failure.rank=1",
        "failure.steps=[11,'13.save:step-#.pt:torn']",
        "audit.only=[struck]",
        f"run_dir={script.parent}/round-3",
        "--",
        *COMMAND,
    ]


def test_what_does_not_happen_each_time_is_not_shown(tmp_path: Path) -> None:
    audit([str(recorded(tmp_path / "a")), "--repro"])
    script = tmp_path / "a" / "repro" / "struck" / "again.sh"
    done = run_again(script, ["broken", "kept", "broken"])
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "broken 2 of 3 times")


def test_a_round_without_an_answer_shows_nothing(tmp_path: Path) -> None:
    audit([str(recorded(tmp_path / "a")), "--repro"])
    done = run_again(tmp_path / "a" / "repro" / "struck" / "again.sh", ["broken", "broken"])
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "broken 2 of 3 times")
    assert "no answer: see" in done.stderr and "round-3.log" in done.stderr


def test_versions_are_those_of_the_interpreter_that_the_command_names(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "a")
    document = json.loads((folder / "audit.json").read_text())
    document["command"][0] = "/opt/theirs/bin/python3.11"
    (folder / "audit.json").write_text(json.dumps(document))
    audit([str(folder), "--repro"])
    script = (folder / "repro" / "struck" / "again.sh").read_text()
    assert "/opt/theirs/bin/python3.11 -m pip freeze" in script


def test_the_keys_are_keys_that_an_audit_takes(tmp_path: Path) -> None:
    from ecrl_cli.cli.arguments import parse
    from ecrl_cli.cli.audit import quoted
    from ecrl_cli.cli.compose import compose, initialized
    from ecrl_cli.config.audit import build_audit

    audit([str(recorded(tmp_path / "a")), "--repro"])
    script = (tmp_path / "a" / "repro" / "struck" / "again.sh").read_text()
    (line,) = (line for line in script.splitlines() if line.startswith("  ecrl audit"))
    keys = [word for word in shlex.split(line.rstrip("\\"))[3:] if not word.startswith("run_dir")]
    overrides = parse([quoted(key) for key in keys], "audit").overrides
    with initialized("audit"):
        config = build_audit(compose("audit", [each.input_line or "" for each in overrides]))
    assert config.failure == CONFIG.failure
    assert (config.audit.resume, config.audit.only) == (CONFIG.audit.resume, ("struck",))


def test_the_first_difference_holds_what_both_recorded(tmp_path: Path) -> None:
    planned(recorded(tmp_path / "a") / "struck", 11, 99, happened=1)
    audit([str(tmp_path / "a"), "--repro"])
    target = tmp_path / "a" / "repro" / "struck"
    difference = json.loads((target / "difference.json").read_text())
    assert (difference["step"], difference["components"]) == (13, ["samples", "input"])
    samples = difference["ranks"]["0"]["components"]["samples"]
    assert samples["restarted"] == [samples["undisturbed"][0], "31"]
    draft = (target / "issue.md").read_text()
    assert "python train.py --out '{dir}'" in draft and "`--resume {latest:*.pt}`" in draft
    assert "first step that differs is step 13: samples" in draft
    assert "kill of rank 0 at step 11" in draft and "at step 99" not in draft


def test_nothing_broken_is_nothing_to_show(tmp_path: Path) -> None:
    with pytest.raises(EvidenceMissing, match="has no broken promise"):
        audit([str(recorded(tmp_path / "a", broken=False)), "--repro"])
    assert not (tmp_path / "a" / "repro").exists()


def test_a_recording_without_its_command_is_refused(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "a")
    (folder / "audit.json").unlink()
    with pytest.raises(EvidenceMissing, match="which command was audited"):
        audit([str(folder), "--repro"])


def test_only_the_named_arms_are_run(tmp_path: Path) -> None:
    reference = judged_arm(read_arm(healthy(tmp_path) / "ref"))
    names = [arm.name for arm in planned_arms(AuditConfig(), reference)]
    assert len(names) > 1
    chosen = AuditConfig(AuditKeys(only=(names[1],)))
    assert [arm.name for arm in planned_arms(chosen, reference)] == [names[1]]
    with pytest.raises(ConfigError, match=f"audit.only: no arm 'no' .* there are {names[0]}"):
        planned_arms(AuditConfig(AuditKeys(only=("no",))), reference)
