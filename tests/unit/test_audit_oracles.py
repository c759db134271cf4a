"""What an audit judges beside the undisturbed run: a cold start, another number of processes, and
what is missing from a record.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from ecrl_cli.audit.audit import judge_folder, write_result
from ecrl_cli.audit.components import ArmFinding, judged_arm
from ecrl_cli.audit.plan import planned_arms
from ecrl_cli.audit.records import read_arm
from ecrl_cli.audit.runner import Job, run_arm
from ecrl_cli.audit.verdict import AuditVerdict, render
from ecrl_cli.cli.audit import audit
from ecrl_cli.config.audit import AuditConfig, AuditFailure, AuditKeys
from ecrl_cli.errors import ConfigError, RecordError, RunDirectoryError
from ecrl_cli.linux.processes import tagged
from tests.unit.audit_recordings import (
    LAST,
    attempt_lines,
    change,
    healthy,
    ids,
    state,
    told,
    write,
    write_arm,
)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return healthy(tmp_path / "audit")


def finding(verdict: AuditVerdict, promise: str) -> ArmFinding:
    (only,) = [
        found
        for found in verdict.findings
        if found.promise == promise and found.arm in ("struck", "")
    ]
    return only


def add_cold(folder: Path) -> None:
    for rank in (0, 1):
        write(folder / "cold", 0, rank, attempt_lines(rank, 0, 3))


def add_control(folder: Path, left_out: bool, lost: bool) -> None:
    """The arm whose restart leaves out the optimizer's state; `lost`: it shows."""
    call = {"type": "call", "what": "control", "left_out": "optimizer", "after_step": 0}
    for attempt, (first, last) in enumerate(((0, 10), (8, LAST))):
        for rank in (0, 1):
            lines = attempt_lines(rank, first, last, resumed=attempt > 0)
            if attempt and lost:
                changed = {
                    "start": {"optimizer": told("fresh"), "entries": 0},
                    "step": {"params": told("after"), "optimizer": told("after")},
                }
                lines = [line | changed.get(line["type"], {}) for line in lines]
            if attempt and left_out:
                lines.insert(1, call)
            write(folder / "control", attempt, rank, lines)


@pytest.mark.parametrize(
    ("left_out", "lost", "status", "said"),
    [
        (True, True, "valid", "without the optimizer's state, left out on purpose, was seen: the"),
        (True, False, "unknown", "left out on purpose, broke no promise: the evidence is blind"),
        (False, False, "unknown", "nothing could be left out"),
    ],
)
def test_what_the_control_leaves_out_must_be_seen(
    recorded: Path, left_out: bool, lost: bool, status: str, said: str
) -> None:
    add_control(recorded, left_out, lost)
    verdict = judge_folder(recorded, None, "auto")
    (control,) = [found for found in verdict.findings if found.arm == "control"]
    assert said in control.message and verdict.status == status
    assert control.status == ("kept" if status == "valid" else "unknown")
    assert [judged.arm.name for judged in verdict.arms] == ["struck"]


def test_an_attempt_that_differs_from_a_cold_start_has_used_its_state(recorded: Path) -> None:
    add_cold(recorded)
    verdict = judge_folder(recorded, None, "auto")
    found = finding(verdict, "state used")
    assert verdict.status == "valid" and found.status == "kept", render(verdict, "audit")
    assert found.message.startswith(
        "attempt 1 differs from a cold start in input, generators, settings, loss"
    )
    # step 9 has the samples of step 1 in any run
    assert "attempt 2 differs from a cold start in samples, input" in found.message
    assert [judged.arm.name for judged in verdict.arms] == ["struck"]


def test_a_component_of_a_cold_start_is_named(recorded: Path) -> None:
    """The job itself is not deterministic in its losses: its generators and samples still tell."""
    add_cold(recorded)
    change(
        recorded,
        1,
        lambda line: (
            line | {"rng": told("rng", line["step"], 0)} if line["type"] == "step" else line
        ),
        (0,),
    )
    change(
        recorded,
        1,
        lambda line: (
            line | {"rng": told("rng", line["step"], 1)} if line["type"] == "step" else line
        ),
        (1,),
    )
    found = finding(judge_folder(recorded, None, "auto"), "state used")
    assert found.status == "broken"
    assert (
        found.message
        == "attempt 1 began with the generators of a cold start: what was saved of that was not"
        " used"
    )


def test_a_constant_setting_is_no_sign_of_a_cold_start(recorded: Path) -> None:
    """The scale is the same in every step of every run."""
    add_cold(recorded)
    found = finding(judge_folder(recorded, None, "auto"), "state used")
    assert "scale" not in found.message


def one_process(first: int, last: int, *, resumed: bool = True) -> list[dict[str, Any]]:
    """The job of two ranks, done by one: both shares in a step, the state of rank 0, losses of its
    own.
    """
    lines = attempt_lines(0, first, last, resumed=resumed)
    both = {step: [*ids(step, 0), *ids(step, 1)] for step in range(first + 1, last + 1)}
    for line in lines:
        if line["type"] == "process":
            line["world_size"] = 1
        if line["type"] == "batch":
            line |= {"ids": both[first + line["n"]], "hash": told("both", line["n"])}
        if line["type"] == "step":
            line |= {
                "losses": [0.5],
                "params": told("one", line["step"]),
                "optimizer": told("one", line["step"]),
            }
    return lines


@pytest.fixture
def resized(tmp_path: Path) -> Path:
    for name in ("ref", "ref2"):
        write_arm(tmp_path / name, (0, LAST))
    write_arm(tmp_path / "struck", (0, 10), (8, LAST))
    (tmp_path / "struck" / "attempt-01" / "rank1-101.jsonl").unlink()
    write(tmp_path / "struck", 1, 0, one_process(8, LAST))
    return tmp_path


def test_another_number_of_processes_is_judged_by_samples_and_restored_state(resized: Path) -> None:
    verdict = judge_folder(resized, None, "auto")
    assert verdict.status == "valid", render(verdict, "audit")
    assert (
        verdict.diagnosis == "1 with another number of processes, with the same samples and state"
    )
    assert (
        finding(verdict, "exactly once").message
        == "with 2 and 1 processes, each step consumed the samples of the undisturbed run"
    )
    assert finding(verdict, "restored: optimizer").status == "kept"
    assert (
        finding(verdict, "same trajectory").status
        == finding(verdict, "restored: generators").status
        == "not checked"
    )
    assert verdict.arms[0].path.done_again == []


def test_a_sample_lost_at_a_change_of_processes_is_found(resized: Path) -> None:
    change(
        resized,
        1,
        lambda line: (
            line | {"ids": ids(9, 0)} if line["type"] == "batch" and line["n"] == 1 else line
        ),
        (0,),
    )
    verdict = judge_folder(resized, None, "auto")
    assert verdict.status == "invalid"
    assert (
        verdict.diagnosis
        == "0 samples came too often and 2 are missing, of 64: the data position was not restored"
    )


def test_an_optimizer_lost_at_a_change_of_processes_is_found(resized: Path) -> None:
    change(
        resized,
        1,
        lambda line: (
            line | {"optimizer": told("fresh"), "entries": 0} if line["type"] == "start" else line
        ),
        (0,),
    )
    assert judge_folder(resized, None, "auto").diagnosis.endswith("(0 entries): it was not loaded")


@pytest.mark.parametrize(
    ("drop", "said"),
    [
        (("type", "step"), "step 14 of rank 1 is not on record (attempt 2)"),
        (("key", "losses"), "the loss of step 14, rank 1, is not on record (attempt 2)"),
        (("key", "params"), "the parameters of step 14, rank 1, is not on record (attempt 2)"),
    ],
)
def test_a_missing_record_is_never_valid(recorded: Path, drop: tuple[str, str], said: str) -> None:
    def without(line: dict[str, Any]) -> dict[str, Any] | None:
        if line["type"] != "step" or line["step"] != 2:
            return line
        return (
            None
            if drop[0] == "type"
            else {key: value for key, value in line.items() if key != drop[1]}
        )

    change(recorded, 2, without, (1,))
    verdict = judge_folder(recorded, None, "auto")
    assert verdict.status == "unknown" and finding(verdict, "same trajectory").message == said, (
        render(verdict, "audit")
    )


def test_the_step_that_a_dead_rank_did_not_record_is_excused(tmp_path: Path) -> None:
    """Rank 0 has finished step 8 and its checkpoint; rank 1 died in its update. Nobody does step 8
    again.
    """
    for name in ("ref", "ref2"):
        write_arm(tmp_path / name, (0, LAST))
    write_arm(tmp_path / "struck", (0, 8), (8, LAST))
    change(tmp_path, 0, lambda line: None if line.get("step") == 8 else line, (1,))
    verdict = judge_folder(tmp_path, None, "auto")
    assert verdict.status == "valid", render(verdict, "audit")


def test_digests_at_checkpoints_only_still_prove_where_it_went_on(tmp_path: Path) -> None:
    for name in ("ref", "ref2"):
        write_arm(tmp_path / name, (0, LAST))
    write_arm(tmp_path / "struck", (0, 10), (8, LAST))

    def without(line: dict[str, Any]) -> dict[str, Any]:
        if line["type"] == "step":
            return {
                key: value
                for key, value in line.items()
                if key not in ("params", "optimizer", "buffers")
            }
        if line["type"] == "save" and not line["done"]:
            return line | {
                key: state(line["after_step"], 0)[key] for key in ("params", "optimizer")
            }
        return line

    for path in sorted(tmp_path.glob("*/attempt-*/*.jsonl")):
        offset = 8 if "attempt-01" in str(path) else 0
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        lines = [
            without(line | ({"after_step": line["after_step"]} if line["type"] == "save" else {}))
            for line in lines
        ]
        for line in lines:
            if line["type"] == "save" and not line["done"]:
                line |= {
                    key: state(line["after_step"] + offset, 0)[key]
                    for key in ("params", "optimizer")
                }
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    verdict = judge_folder(tmp_path, None, "auto")
    assert verdict.status == "valid" and verdict.arms[0].path.resumed[0].proof == "content", render(
        verdict, "audit"
    )


def test_without_any_digest_of_a_checkpoint_its_parameters_are_not_checked(recorded: Path) -> None:
    for path in sorted(recorded.glob("*/attempt-*/*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        lines = [
            {
                k: v
                for k, v in line.items()
                if k not in ("params", "optimizer", "buffers") or line["type"] == "start"
            }
            for line in lines
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    verdict = judge_folder(recorded, None, "auto")
    assert {
        found.status for found in verdict.findings if found.promise == "restored: parameters"
    } == {"not checked"}
    assert verdict.status == "valid", render(verdict, "audit")


def test_digests_of_different_kinds_are_not_compared(recorded: Path) -> None:
    """A restart in an environment that has xxhash, or another recorder: nothing is said of the
    job.
    """
    for attempt, name in ((0, "blake2b_128/v3"), (1, "blake2b_128/v3"), (2, "xxh3_128/v3")):
        change(
            recorded,
            attempt,
            lambda line, name=name: line | {"digest": name} if line["type"] == "start" else line,
        )  # type: ignore[misc]
    change(
        recorded,
        2,
        lambda line: (
            line | {"params": told("xxh3", line["step"])} if line["type"] == "step" else line
        ),
    )
    verdict = judge_folder(recorded, None, "auto")
    assert verdict.status == "unknown" and verdict.diagnosis.startswith(
        "recorded with different digests (blake2b_128/v3, xxh3_128/v3)"
    )


def test_a_damaged_line_in_the_middle_makes_it_unknown(recorded: Path) -> None:
    (path,) = (recorded / "struck" / "attempt-01").glob("rank0-*.jsonl")
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], lines[3][:20], *lines[4:]]) + "\n")
    verdict = judge_folder(recorded, None, "auto")
    assert (
        verdict.status == "unknown"
        and "a damaged line stands in the middle of the record" in verdict.diagnosis
    )


def test_a_step_that_the_job_tells_of_stands_for_the_one_that_was_seen(tmp_path: Path) -> None:
    """`rec.step(...)` in a job whose optimizer the recorder sees as well: one step, with the job's
    number and all that was seen.
    """

    def lines(first: int, last: int) -> list[dict[str, Any]]:
        seen = [
            line | {"world_size": 1} if line["type"] == "process" else line
            for line in attempt_lines(0, first - 1, last)
        ]
        return [
            told_too
            for line in seen
            for told_too in ([line, declared(first, line)] if line["type"] == "step" else [line])
        ]

    def declared(first: int, line: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": "step",
            "step": first - 1 + line["step"],
            "declared": True,
            "losses": [float(first - 1 + line["step"])],
        }

    for arm in ("ref", "ref2"):
        write(tmp_path / arm, 0, 0, lines(1, 9))
    write(tmp_path / "struck", 0, 0, lines(1, 6))
    write(tmp_path / "struck", 1, 0, lines(5, 9))
    verdict = judge_folder(tmp_path, None, "auto")
    steps = verdict.arms[0].arm.attempts[1][0].steps
    assert [step.number for step in steps] == [5, 6, 7, 8, 9] and [
        step.losses for step in steps
    ] == [(5.0,), (6.0,), (7.0,), (8.0,), (9.0,)]
    assert steps[0].digests["params"] == told("params", 5) and steps[0].samples == tuple(
        str(one) for one in ids(5, 0)
    )
    assert verdict.status == "valid", render(verdict, "audit")


def _plan(arm: Path, *faults: dict[str, Any]) -> None:
    path = arm / "arm.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"strikes": faults}))


def test_a_failure_that_never_happened_is_not_a_failure_survived(recorded: Path) -> None:
    """The second one of two was planned for a moment that did not come."""
    first, second = (
        {"index": number, "kind": "kill", "rank": 0, "step": step, "moment": "save"}
        for number, step in enumerate((11, 13))
    )
    (path,) = (recorded / "struck" / "attempt-00").glob("rank0-*.jsonl")
    path.write_text(path.read_text() + json.dumps({"type": "strike", **first}) + "\n")
    _plan(recorded / "struck", first)
    assert judge_folder(recorded, None, "auto").status == "valid"
    _plan(recorded / "struck", first, second)
    verdict = judge_folder(recorded, None, "auto")
    assert (verdict.status, verdict.diagnosis) == (
        "unknown",
        "a planned failure never happened: kill of rank 0 at step 13 (save)",
    )


@pytest.mark.parametrize(
    "faults",
    [
        [1],
        [{}],
        [{"index": -1, "kind": "kill", "rank": 0, "step": 1, "moment": "save"}],
        {"a": 1},
        7,
    ],
)
def test_a_hostile_plan_is_refused_by_name(recorded: Path, faults: object) -> None:
    path = recorded / "struck" / "arm.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"strikes": faults}))
    with pytest.raises(RecordError, match=r"arm\.json"):
        judge_folder(recorded, None, "auto")


def test_a_save_is_struck_only_where_one_is(recorded: Path) -> None:
    """Of the rank that is to be struck: rank 1 saves nothing."""

    def planned(rank: int, *steps: str) -> list[int]:
        failure = AuditFailure("kill", steps, rank)
        (arm,) = planned_arms(AuditConfig(failure=failure), judged_arm(read_arm(recorded / "ref")))
        return [fault.step for fault in arm.faults]

    assert planned(0, "8.save", "13") == [8, 13] and planned(1, "13") == [13]
    with pytest.raises(
        ConfigError, match=r"rank 0 saves nothing after step 13 .* it saves after 4, 8, 12, 16"
    ):
        planned(0, "13.save")
    with pytest.raises(
        ConfigError, match=r"rank 1 saves nothing after step 8 .* it saves after none"
    ):
        planned(1, "8.save")


def test_the_words_of_a_restart_are_split_as_a_shell_does(tmp_path: Path) -> None:
    """Quotes hold a word together, and so does a folder with a space in its name."""
    arm, keys = (
        tmp_path / "an arm",
        AuditKeys(
            resume="""--resume {dir}/last.pt --note 'second try'""",
            elastic="""python -c "print('{attempt}')" """,
        ),
    )
    job = Job(("python", "train.py", "--out={dir}"), keys, tmp_path)
    resume = ["--resume", f"{arm}/work/last.pt", "--note", "second try"]
    assert job.command(arm, 0) == ["python", "train.py", f"--out={arm}/work"]
    assert job.command(arm, 1) == ["python", "-c", "print('1')", *resume]
    assert replace(job, keys=replace(keys, elastic="")).command(arm, 2) == [
        "python",
        "train.py",
        f"--out={arm}/work",
        *resume,
    ]


def test_a_job_that_hangs_is_killed_and_started_again(tmp_path: Path) -> None:
    """Its first attempt stops itself, with a child that would outlive it."""
    words = ("sh", "-c", "[ {attempt} = 0 ] || exit 0; sleep 1000 & kill -STOP $$", "{dir}")
    job = Job(words, AuditKeys(start_timeout_s=3.0), tmp_path)
    launches = run_arm(job, tmp_path / "arm", (), lambda line: None)
    assert [(launch.hung, launch.exit_code, launch.signal) for launch in launches] == [
        (True, None, 9),
        (False, 0, None),
    ]
    assert [pid for pid in psutil.pids() if tagged(f"ECRL_AUDIT_ARM={tmp_path / 'arm'}")(pid)] == []


def test_what_is_judged_again_keeps_what_it_was_asked(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command and the plan, and the order of the samples that was promised: here none, and two
    samples have changed places.
    """
    (path,) = (recorded / "struck" / "attempt-02").glob("rank0-*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["type"] == "batch":
            line |= {"ids": line["ids"][::-1], "hash": told("turned", line["hash"])}
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    asked = {
        "command": ["python", "train.py"],
        "config": {"audit": {"order": "free"}},
        "plan": [{"name": "struck"}],
    }
    (recorded / "audit.json").write_text(json.dumps(asked))
    for words, said in (
        ([], "kept        exactly once"),
        (["--order", "declared"], "broken      exactly once"),
    ):
        audit([str(recorded), *words], say=lambda line: None)
        assert said in capsys.readouterr().out
        document = json.loads((recorded / "audit.json").read_text())
        assert {key: document[key] for key in asked} == asked
    for strange in (
        "[]",
        "{",
        '{"config": {"audit": [1]}, "command": "x", "plan": 3}',
        '{"config": {"audit": {"order": ["free"]}}}',
    ):
        (recorded / "audit.json").write_text(strange)
        audit([str(recorded)], say=lambda line: None)
        assert "broken      exactly once" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seconds", "x"),
        ("seconds", 1e300),
        ("seconds", -1),
        ("left_behind", "x"),
        ("left_behind", -1),
        ("signal", "<b>"),
        ("hung", 1),
        ("attempt", 10**30),
    ],
)
def test_a_hostile_arm_json_is_refused_by_name(recorded: Path, key: str, value: object) -> None:
    path = recorded / "struck" / "arm.json"
    document = json.loads(path.read_text())
    document["launches"][0][key] = value
    path.write_text(json.dumps(document))
    with pytest.raises(RecordError, match=r"arm\.json"):
        judge_folder(recorded, None, "auto")


def test_the_page_is_not_written_through_a_strangers_link(recorded: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (recorded / "report").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunDirectoryError, match="is a symbolic link"):
        write_result(recorded, judge_folder(recorded, None, "auto"), {})
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_lines_that_say_nothing_are_bounded_and_a_deep_one_is_no_torn_end(tmp_path: Path) -> None:
    healthy(tmp_path / "audit")
    (path,) = (tmp_path / "audit" / "struck" / "attempt-02").glob("rank0-*.jsonl")
    whole = path.read_text()
    path.write_text(whole + '{"type":"x","deep":' + "[" * 100_000 + "]" * 100_000 + "}\n")
    verdict = judge_folder(tmp_path / "audit", None, "auto")
    assert verdict.status == "unknown" and "nested too deep" in verdict.diagnosis
    path.write_text(whole + "\n" * 200_000)
    with pytest.raises(RecordError, match="empty lines"):
        judge_folder(tmp_path / "audit", None, "auto")


def test_another_shuffle_is_told_from_another_position(recorded: Path) -> None:
    """After step 12 the rest of the epoch comes in an order that the undisturbed run never had; or
    from one sample further on.
    """
    for name, ids_of, said in (
        (
            "shuffle",
            lambda step, rank: [(value * 11 + 5) % 32 for value in ids(step, rank)][::-1],
            "came in another order",
        ),
        (
            "position",
            lambda step, rank: [*ids(step, rank)[1:], *ids(step + 1, rank)[:1]],
            "the data position was not restored",
        ),
    ):
        folder = healthy(recorded.parent / name)
        change(
            folder,
            2,
            lambda line, ids_of=ids_of: (
                line | {"ids": ids_of(12 + line["n"], 0)} if line["type"] == "batch" else line
            ),
            (0,),
        )  # type: ignore[misc]
        (broken,) = [
            f
            for f in judge_folder(folder, None, "auto").findings
            if f.promise == "exactly once" and f.status == "broken"
        ]
        assert said in broken.message, broken.message


def test_the_order_of_another_epoch_is_told_from_another_position(recorded: Path) -> None:
    """The second epoch has an order of its own; attempt 2, after step 12, has that of the first."""
    for path in recorded.rglob("rank*.jsonl"):
        after = {"00": 0, "01": 8, "02": 12}[path.parent.name[-2:]]
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            if line["type"] == "batch" and after + line["n"] > 8:
                turned = [(value * 11 + 5) % 32 for value in line["ids"]][::-1]
                if after == 12:  # one further on, so that no step has the samples of another
                    rank, step = int(path.name[4]), 12 + line["n"]
                    turned = [*ids(step, rank)[1:], *ids(step + 1, rank)[:1]]
                line |= {"ids": turned, "hash": told("turned", turned)}
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (broken,) = [
        finding
        for finding in judge_folder(recorded, None, "auto").findings
        if finding.promise == "exactly once" and finding.status == "broken"
    ]
    assert broken.message == (
        "from step 13 on the samples came in the order of another epoch (rank 0, attempt 2): the"
        " epoch, a seed or the data position was not restored"
    )


def test_too_few_samples_tell_no_shuffle_from_a_position(recorded: Path) -> None:
    """Only the last step of the epoch has others."""
    change(
        recorded,
        2,
        lambda line: line | {"ids": [40, 41]} if line.get("n") == 4 else line,
        (0,),
    )
    (broken,) = [
        finding
        for finding in judge_folder(recorded, None, "auto").findings
        if finding.promise == "exactly once"
    ]
    assert broken.message.endswith("the data position, or their order, was not restored")


def test_the_end_of_an_evaluation_is_no_end_of_an_epoch(recorded: Path) -> None:
    """A validation loader runs through in the middle of the first epoch; a kill in a later epoch is
    planned behind the training's own.
    """
    for path in sorted((recorded / "ref").glob("attempt-00/*.jsonl")):
        lines = path.read_text().splitlines()
        place = next(
            number for number, line in enumerate(lines) if '"type": "step", "step": 3' in line
        )
        path.write_text(
            "\n".join(
                [
                    *lines[: place + 1],
                    '{"type": "epoch", "loader": 1, "after_step": 3}',
                    *lines[place + 1 :],
                ]
            )
            + "\n"
        )
    process, _ = read_arm(recorded / "ref").processes
    assert process.epochs == [8, 16]
