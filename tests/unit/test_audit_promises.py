"""`ecrl audit DIR`: a healthy recording is valid; each way to come back wrong breaks its promise,
named in the diagnosis.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli import __version__
from ecrl_cli.audit.audit import judge_folder, write_result
from ecrl_cli.audit.components import ArmFinding, in_words, judged_arm
from ecrl_cli.audit.costs import costs_of
from ecrl_cli.audit.lineage import (
    AFTER,
    RecordedState,
    Resumed,
    path_of,
    without_trial_steps,
)
from ecrl_cli.audit.page import STATES, page
from ecrl_cli.audit.plan import too_few_steps
from ecrl_cli.audit.records import read_arm
from ecrl_cli.audit.saving import reads
from ecrl_cli.audit.steps import OptimizerState
from ecrl_cli.audit.verdict import AuditVerdict, render
from ecrl_cli.cli.audit import audit
from ecrl_cli.config.codec import encode
from ecrl_cli.errors import ConfigError, EvidenceMissing, RecordError
from tests.strangers.contradictions import contradictions
from tests.unit.audit_recordings import (
    LAST,
    Change,
    attempt_lines,
    change,
    healthy,
    ids,
    told,
    write,
    write_arm,
)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return healthy(tmp_path / "audit")


def judged(folder: Path, order: str = "auto") -> AuditVerdict:
    return judge_folder(folder, None, order)


def status(verdict: AuditVerdict, promise: str, arm: str = "struck") -> list[str]:
    return [
        finding.status
        for finding in verdict.findings
        if finding.promise == promise and finding.arm in (arm, "")
    ]


def test_a_healthy_job_is_valid(recorded: Path) -> None:
    verdict = judged(recorded)
    assert verdict.status == "valid", render(verdict, "audit")
    assert {finding.status for finding in verdict.findings if finding.promise != "same files"} == {
        "kept"
    }
    assert [(begun.after, begun.proof) for begun in verdict.arms[0].path.resumed] == [
        (8, "content"),
        (12, "content"),
    ]
    assert len(verdict.arms[0].path.done_again) == 4


def test_a_job_that_starts_a_rank_again_in_a_way_that_is_not_told_is_unknown(
    recorded: Path,
) -> None:
    """Not invalid: the steps of two processes of one attempt cannot be put in order. Where the
    undisturbed run has two of that rank as well, they are no restart.
    """

    def twice(arm: str) -> None:
        first = recorded / arm / "attempt-00" / "rank1-1.jsonl"
        lines = attempt_lines(1, 8, 10)
        (first.parent / "rank1-77.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in lines))

    twice("struck")
    verdict = judged(recorded)
    assert (verdict.status, status(verdict, "complete record")) == ("unknown", ["unknown"])
    assert verdict.diagnosis.startswith("in attempt 0 the job started rank 1 again itself")
    assert {finding.arm for finding in verdict.findings if finding.status == "broken"} == set()
    twice("ref")
    assert "again itself" not in judged(recorded).diagnosis


def test_a_rank_that_trains_in_several_processes_one_after_another_is_unknown(
    recorded: Path,
) -> None:
    """One process an epoch, say. Side by side they are no such thing."""
    first = recorded / "ref" / "attempt-00" / "rank1-1.jsonl"
    lines = [
        json.loads(line) | {"at": 1.0 + n} for n, line in enumerate(first.read_text().splitlines())
    ]
    first.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for late, after in ((False, 0.5), (True, 1000.0)):
        again = [line | {"at": line["at"] + after} for line in lines]
        text = "".join(f"{json.dumps(line)}\n" for line in again)
        (first.parent / "rank1-77.jsonl").write_text(text)
        verdict = judged(recorded)
        assert ("rank 1 makes its steps in 2 processes" in verdict.diagnosis) == late
    assert (verdict.status, len(verdict.findings)) == ("unknown", 1)


def test_an_arm_that_was_stopped_before_its_first_step_was_not_run(recorded: Path) -> None:
    shutil.copytree(recorded / "struck", recorded / "twice")
    for path in (recorded / "twice").rglob("rank*.jsonl"):
        path.write_text(path.read_text().splitlines()[0] + "\n")
    with pytest.raises(EvidenceMissing):
        judged(recorded)
    document = json.loads((recorded / "twice" / "arm.json").read_text())
    document["launches"] = [document["launches"][0] | {"stopped": True}]
    (recorded / "twice" / "arm.json").write_text(json.dumps(document))
    verdict = judge_folder(recorded, None, "auto", planned=["struck", "twice"])
    assert status(verdict, "progress", "twice") == ["unknown"]
    assert {finding.arm for finding in verdict.findings if finding.status == "kept"} >= {"struck"}


def steps(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda line: line | fields if line["type"] == "step" else line


def at(step: int, **fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda line: line | fields if line["type"] == "step" and line["step"] == step else line


def starts(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """An attempt that begins otherwise: its first step ends otherwise too."""
    after = {
        name: told("after", value)
        for name, value in fields.items()
        if name in ("params", "optimizer", "settings", "rng")
    }
    if "optimizer" in fields:
        after["params"] = told("after", fields["optimizer"])

    def edit(line: dict[str, Any]) -> dict[str, Any]:
        if line["type"] == "step" and line["step"] == 1:
            return line | after
        return line | fields if line["type"] == "start" else line

    return edit


def averages(folder: Path) -> None:
    """The checkpoint of step 12 holds other parameters than are trained."""
    for path in folder.rglob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        held = {"params": told("average"), "optimizer": told("optimizer", 12)}
        saves = (line["type"] == "save" and "step-12" in line["path"] for line in lines)
        edited = [line | held if save else line for line, save in zip(lines, saves, strict=True)]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in edited))
    change(folder, 2, starts(params=told("average")))


def first_batches_again(line: dict[str, Any]) -> dict[str, Any]:
    """After step 8 the second epoch begins; the job trains on the batches of the first once more,
    one later.
    """
    return line | {"ids": ids(line["n"] + 1, 0)} if line["type"] == "batch" else line


BROKEN: dict[str, tuple[Callable[[Path], object], str, int | None, str]] = {
    "data position": (
        lambda folder: change(
            folder,
            2,
            lambda line: line | {"ids": ids(line["n"], 0)} if line["type"] == "batch" else line,
            (0,),
        ),
        "exactly once",
        13,
        (
            "step 13 repeats the samples of step 1 (rank 0, attempt 2): the data position was not"
            " restored"
        ),
    ),
    "off by one": (
        lambda folder: change(folder, 1, first_batches_again, (0,)),
        "exactly once",
        9,
        "step 9 repeats the samples of step 2 (rank 0, attempt 1)",
    ),
    "augmentation": (
        lambda folder: change(
            folder,
            2,
            lambda line: (
                line | {"hash": told("other", line["n"])} if line["type"] == "batch" else line
            ),
        ),
        "same input",
        13,
        "the same samples came out as other tensors",
    ),
    "optimizer not loaded": (
        lambda folder: change(folder, 2, starts(optimizer=told("fresh"), entries=0)),
        "restored: optimizer",
        13,
        (
            "the optimizer's state before step 13 is that of no earlier step (0 entries): it was"
            " not loaded"
        ),
    ),
    "a moment lost": (
        lambda folder: change(folder, 2, starts(optimizer=told("half"))),
        "restored: optimizer",
        13,
        "is that of no earlier step, the parameters are those of step 12",
    ),
    "an older optimizer": (
        lambda folder: change(folder, 2, starts(optimizer=told("optimizer", 8))),
        "restored: optimizer",
        13,
        "is that of step 8, the parameters are those of step 12",
    ),
    "parameters of nowhere": (
        lambda folder: change(folder, 2, starts(params=told("average"))),
        "restored: parameters",
        12,
        "the parameters before the first step of attempt 2 are those of no earlier step",
    ),
    "an average that is saved": (
        averages,
        "restored: parameters",
        13,
        "are those that were saved after step 12, and the undisturbed run went on with others",
    ),
    "parameters of one rank": (
        lambda folder: change(folder, 2, starts(params=told("fresh")), (1,)),
        "restored: parameters",
        13,
        (
            "rank 1 began attempt 2 with parameters that no rank had after step 12: they were not"
            " restored"
        ),
    ),
    "schedule": (
        lambda folder: change(folder, 2, starts(settings=told("twice"), lr=[0.05])),
        "restored: schedule and settings",
        13,
        "the learning-rate schedule, or another setting of the optimizer, was not restored",
    ),
    "settings of another step": (
        lambda folder: change(folder, 2, starts(settings=told("settings", 10), lr=[0.01])),
        "restored: schedule and settings",
        13,
        (
            "before step 13, rank 0, 1: the optimizer's settings are as before step 10, and the"
            " parameters are those of step 12: parts of two moments came back"
        ),
    ),
    "settings of the beginning": (
        lambda folder: change(folder, 2, starts(settings=told("settings", 1), lr=[0.1])),
        "restored: schedule and settings",
        13,
        "another setting of the optimizer, was not restored: as before step 1",
    ),
    "generators of rank 0": (
        lambda folder: (
            change(folder, 2, starts(rng=told("rng", 13, 0)), (1,)),
            change(folder, 2, at(1, losses=[0.5]), (1,)),
        ),
        "restored: generators",
        13,
        "before step 13, rank 1: torch's global generator is that of rank 0",
    ),
    "generators in a step of other data": (
        lambda folder: (
            change(folder, 2, starts(rng=told("rng", 99, 0))),
            change(folder, 2, at(1, losses=[0.5], entered=["other"])),
        ),
        "restored: generators",
        13,
        (
            "torch's random number generators were not restored, or this step, which had other"
            " data, drew otherwise"
        ),
    ),
    "scaler": (
        lambda folder: change(folder, 2, steps(scale=65536.0)),
        "restored: scaler",
        13,
        "in step 13, rank 0, 1: the gradient scaler was not restored",
    ),
    "a loss done twice": (
        lambda folder: change(folder, 1, at(1, losses=[0.5]), (1,)),
        "same trajectory",
        9,
        "step 9 was done twice and differs in loss (rank 1, attempt 1)",
    ),
    "parameters apart": (
        lambda folder: change(folder, 2, at(2, params=told("apart"))),
        "same trajectory",
        14,
        "differs from step 14 on, first in parameters",
    ),
    "the last state": (
        lambda folder: change(folder, 2, at(4, optimizer=told("apart"))),
        "same end",
        16,
        "the last step differs in optimizer",
    ),
    "a hang": (
        lambda folder: launches(folder, 1, hung=True, planned=False),
        "progress",
        None,
        "attempt 1 stood still and was ended",
    ),
    "a death by itself": (
        lambda folder: launches(folder, 1, planned=False, exit_code=3),
        "progress",
        None,
        "attempt 1 ended by itself with exit code 3",
    ),
    "left behind": (
        lambda folder: launches(folder, 0, left_behind=2),
        "progress",
        None,
        "2 processes outlived their attempt",
    ),
    "no end": (
        lambda folder: launches(folder, 2, exit_code=1),
        "same end",
        None,
        "the job did not come to its end: attempt 2 ended with exit code 1",
    ),
}


def test_a_generator_that_nothing_was_drawn_from_breaks_nothing(recorded: Path) -> None:
    """A loader draws a seed when it is made, and one more after a restart."""
    change(recorded, 2, starts(rng=told("rng", 99, 0)))
    verdict = judged(recorded)
    assert verdict.status == "valid", render(verdict, "audit")
    assert [
        f.message
        for f in verdict.findings
        if f.status == "not checked" and f.promise != "same files"
    ] == [
        "torch's global generator is in another state after a restart, and nothing that was drawn"
        " from it shows in any step"
    ]


@pytest.mark.parametrize("drawn", [False, True])
def test_a_generator_that_only_the_beginning_of_an_epoch_draws_from_is_not_why_a_loss_differs(
    recorded: Path, drawn: bool
) -> None:
    """The loss differs from the first step after the restart on. `drawn`: a step draws from the
    generator.
    """
    for path in recorded.rglob("rank*.jsonl"):
        after = {"00": 0, "01": 8, "02": 12}[path.parent.name[-2:]]
        again = "again" if after else ""
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            if line["type"] in ("step", "start"):
                number = after + line.get("step", 1)
                epoch = (number - 1) // 8 + (drawn and number > 5)
                line["rng"] = told("epoch", epoch, again)
            if again == "again" and after == 12 and line["type"] == "step":
                line |= {"losses": [1.5], "params": told("other", line["step"])}
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    verdict = judged(recorded)
    assert verdict.status == "invalid"
    assert ("broken" in status(verdict, "restored: generators")) == drawn
    assert ("it is something that the job keeps elsewhere" in verdict.diagnosis) != drawn


def test_the_learning_rate_that_came_back_is_told_beside_the_due_one(recorded: Path) -> None:
    change(recorded, 2, starts(settings=told("twice"), lr=[0.05]))
    change(recorded, 2, at(1, lr=[0.05]))
    (rates,) = [
        finding.evidence
        for finding in judged(recorded).findings
        if (finding.promise, finding.status) == ("restored: schedule and settings", "broken")
    ]
    assert rates == (f"lr [0.05], due was [{0.1 / 13:.6g}]",)


def launches(folder: Path, attempt: int, **fields: Any) -> None:
    path = folder / "struck" / "arm.json"
    document = json.loads(path.read_text())
    document["launches"][attempt].update(fields)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize("name", BROKEN)
def test_what_came_back_wrong_is_named(recorded: Path, name: str) -> None:
    spoil, promise, step, said = BROKEN[name]
    spoil(recorded)
    verdict = judged(recorded)
    found = [
        finding
        for finding in verdict.findings
        if finding.promise == promise and finding.status == "broken"
    ]
    assert verdict.status == "invalid" and len(found) == 1, render(verdict, name)
    assert said in found[0].message and found[0].step == step


@pytest.mark.parametrize(
    "name", ["data position", "optimizer not loaded", "schedule", "generators of rank 0"]
)
def test_the_diagnosis_is_the_cause_and_not_what_follows_from_it(recorded: Path, name: str) -> None:
    spoil, _, _, said = BROKEN[name]
    spoil(recorded)
    change(
        recorded,
        2,
        lambda line: (
            line | {"losses": [9.0], "params": told("after", line["step"])}
            if line["type"] == "step"
            else line
        ),
    )
    assert said in judged(recorded).diagnosis


@pytest.mark.parametrize(
    ("first", "status"), [((0.5, 0.5), "valid"), ((0.5, 0.25), "valid"), ((), "invalid")]
)
def test_passes_that_each_process_makes_before_it_trains_are_no_other_loss(
    recorded: Path, first: tuple[float, ...], status: str
) -> None:
    """As for DDP's buckets; a step that lacks its own loss has another one."""

    def warmed_up(line: dict[str, Any]) -> dict[str, Any]:
        if line["type"] != "step" or line["step"] != 1:
            return line
        return line | {"losses": [*first, *line["losses"]] if first else [0.5]}

    change(recorded, 1, warmed_up)
    assert judged(recorded).status == status


@pytest.mark.parametrize(
    ("restored", "said"),
    [
        (True, "what shuffles them, a generator of its own perhaps, went on from another state"),
        (False, "the shuffle, or its generator, was not restored"),
    ],
)
def test_another_order_is_no_fault_of_generators_that_came_back(
    recorded: Path, restored: bool, said: str
) -> None:
    def shuffled(line: dict[str, Any]) -> dict[str, Any]:
        if line["type"] == "batch":
            return line | {"ids": ids(17 - line["n"], 0)}
        return line | ({} if restored or line["type"] != "start" else {"rng": told("other")})

    for path in recorded.rglob("*.jsonl"):  # Python's generator is seeded by nobody
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        unseeded = {"rng_python": told(str(path))}
        lines = [line | unseeded if line["type"] in ("start", "step") else line for line in lines]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    change(recorded, 2, shuffled, ranks=(0,))
    (once,) = [
        finding for finding in judged(recorded).findings if finding.promise == "exactly once"
    ]
    assert once.message == (
        f"from step 13 to 16 the due samples came in another order (rank 0, attempt 2): {said}"
    )


def fed(recorded: Path, edit: Callable[[dict[str, Any], int], dict[str, Any]]) -> None:
    """Each line of all arms, with what entered the model in each step, through `edit`, which gets
    the number of steps before the attempt too.
    """
    for path in recorded.rglob("*.jsonl"):
        struck = path.parent.parent.name == "struck"
        offset = (0, 8, 12)[int(path.parent.name[-1])] if struck else 0
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            if line["type"] == "step":
                line["entered"] = [told("entered", path.name[:5], line["step"] + offset)]
        path.write_text("".join(f"{json.dumps(edit(line, offset))}\n" for line in lines))


@pytest.mark.parametrize("other", [False, True])
def test_batches_that_a_loader_gave_in_other_steps_are_no_other_samples(
    recorded: Path, other: bool
) -> None:
    """New batches are cut out of several that it gave at once. What entered the model tells."""
    fed(recorded, lambda line, _: line)

    def earlier(line: dict[str, Any]) -> dict[str, Any]:
        if other and line["type"] == "step" and line["step"] == 2:
            line = line | {"entered": [told("other")]}
        return line | {"ids": ids(line["n"], 0)} if line["type"] == "batch" else line

    change(recorded, 2, earlier, ranks=(0,))
    verdict = judged(recorded)
    (once,) = [finding for finding in verdict.findings if finding.promise == "exactly once"]
    assert (verdict.status, once.status) == (
        ("invalid", "broken") if other else ("valid", "kept")
    ), render(verdict, "audit")
    assert other or once.message == (
        "its DataLoader gave batches in other steps than in the undisturbed run; what entered the"
        " model was that of the undisturbed run in 32 steps"
    )


@pytest.mark.parametrize("anew", [False, True])
def test_ids_that_are_other_data_since_the_restart_are_told(recorded: Path, anew: bool) -> None:
    def first_again(line: dict[str, Any]) -> dict[str, Any]:
        if line["type"] != "batch":
            return line
        tensors = told("anew", line["n"]) if anew else told("input", line["n"], 0)
        return line | {"ids": ids(line["n"], 0), "hash": tensors}

    change(recorded, 2, first_again, ranks=(0,))
    (once,) = [f for f in judged(recorded).findings if f.promise == "exactly once"]
    assert "step 13 repeats the samples of step 1 (rank 0, attempt 2)" in once.message
    assert ("(a data set that is cut anew)" in once.message) == anew


def test_where_parameters_came_from_is_not_on_record_though_a_checkpoint_is(recorded: Path) -> None:
    for attempt in (1, 2):
        change(recorded, attempt, starts(params=told("average", attempt)))
    (right,) = [f for f in judged(recorded).findings if f.promise == "right checkpoint"]
    assert (right.status, right.message) == (
        "not checked",
        "where attempt 1 went on is not on record (a checkpoint of step 8 had been finished)",
    )


def test_what_enters_a_model_behind_a_frozen_part_is_no_cause(recorded: Path) -> None:
    fed(recorded, lambda line, _: line)
    change(recorded, 2, at(1, entered=[told("other")], params=told("other")))
    assert (
        "first in model input: the update differs, though the loss and the state before it are"
        " right: the gradients of other micro-batches, a clipping norm, a mask, requires_grad"
    ) in judged(recorded).diagnosis


def fetched_ahead(line: dict[str, Any], run: str) -> dict[str, Any]:
    """As a thread does that shares the loader: in each run another step has the batches."""
    return line | {"batches": []} if run == "ref2" and line["type"] == "step" else line


def cut_anew(line: dict[str, Any], _: str) -> dict[str, Any]:
    """Each step takes several batches, of which the recorder sees one consumed."""
    odd = line["type"] == "step" and line["step"] % 2
    return line | {"batches": []} if odd else line


@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize("taken", [fetched_ahead, cut_anew])
def test_batches_that_belong_to_no_step_are_judged_where_they_enter(
    recorded: Path, taken: Callable[[dict[str, Any], str], dict[str, Any]], other: bool
) -> None:
    fed(recorded, lambda line, _: line)
    for path in recorded.rglob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        edited = [taken(line, path.parent.parent.name) for line in lines]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in edited))
    wrong = {"entered": [told("other")], "losses": [0.5]} if other else {}
    change(recorded, 2, lambda line: line | wrong if line["type"] == "step" else line)
    verdict = judged(recorded)
    assert verdict.status == ("invalid" if other else "valid"), render(verdict, "audit")
    (once,) = [finding for finding in verdict.findings if finding.promise == "exactly once"]
    assert once.message.startswith("the batches of its DataLoader belong to no one step")


def test_what_a_restart_numbers_anew_is_known_by_what_enters(recorded: Path) -> None:
    fed(recorded, lambda line, _: line)

    def skipped(line: dict[str, Any]) -> dict[str, Any]:
        if line["type"] == "step":
            number = line["step"] + 13
            return line | {"entered": [told("entered", "rank0", number)], "losses": [0.5]}
        return line | {"ids": ids(line["n"], 0)} if line["type"] == "batch" else line

    change(recorded, 2, skipped, ranks=(0,))
    (once,) = [f for f in judged(recorded).findings if f.promise == "exactly once"]
    assert once.message == (
        "step 13 consumed, under other ids, what was due in step 14 (rank 0, attempt 2): the data"
        " position was not restored"
    )


def test_an_epoch_that_is_done_again_is_no_other_order_of_the_next(recorded: Path) -> None:
    """Resumed at the end of the first epoch, with its number: the second has another order."""

    def shuffled(line: dict[str, Any], offset: int) -> dict[str, Any]:
        if line["type"] == "batch" and line["n"] > 8 and not offset:
            rank = int(line["ids"] != ids(line["n"], 0))
            wanted = ids(25 - line["n"], rank)
            return line | {"ids": wanted, "hash": told("samples", wanted)}
        return line | {"entered": []}

    fed(recorded, shuffled)
    (once,) = [
        finding for finding in judged(recorded).findings if finding.promise == "exactly once"
    ]
    assert once.message == (
        "step 9 repeats the samples of step 1 (rank 0, attempt 1): the order of an earlier epoch"
        " came again, its number or its shuffle was not restored"
    )


@pytest.mark.parametrize(
    ("called", "said"),
    [
        ([], []),
        (["load_state_dict"], ["sets no epoch"]),
        (["set_epoch", "load_state_dict"], []),
        (["shuffle", "set_epoch", "load_state_dict"], ["the buffer of shuffle"]),
        (["shuffle", "load_state_dict"], ["sets no epoch", "the buffer of shuffle"]),
    ],
)
def test_what_a_streamed_data_sets_state_leaves_out_is_named_beside_wrong_samples(
    recorded: Path, called: list[str], said: list[str]
) -> None:
    names = [f"IterableDataset.{name}" for name in called]
    calls = [{"type": "call", "what": name, "buffer": 10, "after_step": 0} for name in names]
    change(recorded, 1, lambda line: line | ({"ids": [90, 91]} if line["type"] == "batch" else {}))
    for path in (recorded / "struck" / "attempt-01").glob("*.jsonl"):
        path.write_text(path.read_text() + "".join(json.dumps(call) + "\n" for call in calls))
    (once,) = [found for found in judged(recorded).findings if found.promise == "exactly once"]
    hints = [text for text in once.evidence if "IterableDataset" in text]
    assert len(hints) == len(said) and all(a in b for a, b in zip(said, hints, strict=True))


def uneven_rank(rank: int, first: int, last: int, rate: float) -> list[dict[str, Any]]:
    """Rank 0 makes four steps an epoch, rank 1 five; between epochs their states become one."""
    per = 4 + rank

    def state(*words: object) -> dict[str, Any]:
        return {"SGD[1]ab": {"params": told(*words), "optimizer": told("moments", *words)}}

    def before(step: int) -> dict[str, Any]:
        epoch, place = divmod(step - 1, per)
        return state("behind", rank, step - 1) if place else state("epoch", epoch)

    lines: list[dict[str, Any]] = [
        {"type": "process", "format": 1, "rank": rank, "world_size": 2},
        {"type": "start", "objects": before(first + 1)},
    ]
    for step in range(first + 1, last + 1):
        settings = {"SGD[1]ab": told("settings", rate if first else 1.0, (step - 1) // per)}
        instant = {"objects": before(step), "settings_of": settings}
        lines.append(
            {
                "type": "step",
                "step": step - first,
                "losses": [step + rank / 2],
                "objects": state("behind", rank, step),
                "settings_of": settings,
                "who": ["SGD[1]ab"],
                "before": instant,
            }
        )
    return lines


@pytest.mark.parametrize(("rate", "status"), [(1.0, "valid"), (0.5, "invalid")])
def test_ranks_that_make_different_numbers_of_steps_are_each_held_against_their_own(
    tmp_path: Path, rate: float, status: str
) -> None:
    for name, parts in (("ref", [(0, 2)]), ("ref2", [(0, 2)]), ("struck", [(0, 1), (1, 2)])):
        write_arm(tmp_path / name, *[(0, LAST)] * len(parts))
        for attempt, (first, last) in enumerate(parts):
            for rank in (0, 1):
                (path,) = (tmp_path / name / f"attempt-{attempt:02d}").glob(f"rank{rank}-*.jsonl")
                lines = uneven_rank(rank, first * (4 + rank), last * (4 + rank), rate)
                path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    verdict = judged(tmp_path)
    assert verdict.status == status, render(verdict, "audit")
    if status == "invalid":
        assert "differs from step 5 on, first in settings" in verdict.diagnosis


def test_who_made_a_step_of_a_fresh_optimizer_is_named_beside_its_lost_state(
    recorded: Path,
) -> None:
    asked = {"type": "call", "what": "Optimizer.step", "by": "get_state_dict", "after_step": 0}
    change(recorded, 1, starts(optimizer=told("a step without gradients")))
    for path in (recorded / "struck" / "attempt-01").glob("*.jsonl"):
        path.write_text(path.read_text() + json.dumps(asked) + "\n")
    findings = judged(recorded).findings
    (lost,) = [
        found for found in findings if found.promise == "restored: optimizer" and found.step == 9
    ]
    assert lost.evidence == (
        "get_state_dict was called on an optimizer that had made no step: it makes one, without"
        " gradients, and counters and moments are those of a step then; call it after the first"
        " step",
    )


@pytest.mark.parametrize("reader", ["dcp", ""])
def test_the_way_out_is_beside_a_state_that_dcp_left_out(recorded: Path, reader: str) -> None:
    load = {"type": "load", "path": "out/step-12", "by": reader, "after_step": 0}
    change(recorded, 2, starts(optimizer=told("fresh"), entries=0))
    for path in (recorded / "struck" / "attempt-02").glob("*.jsonl"):
        path.write_text(path.read_text() + json.dumps(load) + "\n")
    (lost,) = [
        one
        for one in judged(recorded).findings
        if (one.promise, one.status) == ("restored: optimizer", "broken")
    ]
    assert ["set_optimizer_state_dict" in line for line in lost.evidence] == [True] * (
        reader == "dcp"
    )


def test_another_optimizer_on_the_same_parameters_is_named(tmp_path: Path) -> None:
    def trained_with(name: str) -> Change:
        return lambda line: (
            line | {"objects": {name: {"params": line["params"], "optimizer": name}}}
            if line["type"] in ("start", "step")
            else line
        )

    write_arm(tmp_path / "struck", (0, 10), (8, LAST))
    change(tmp_path, 0, trained_with("SGD[4]ab"))
    change(tmp_path, 1, trained_with("Adam[4]ab"))
    (lost,) = [
        finding for finding in judged(tmp_path).findings if finding.promise.startswith("restored")
    ]
    assert (lost.promise, lost.status, lost.message) == (
        "restored: optimizer",
        "broken",
        "attempt 1 trains the parameters of step 8 with Adam of 4 tensors, and they were trained"
        " with SGD of 4 tensors: the optimizer is another one",
    )


def test_ranks_that_go_on_from_checkpoints_of_their_own_are_named(recorded: Path) -> None:
    """Attempt 1 begins after step 8; rank 1 of it as after step 4."""
    change(recorded, 1, starts(params=told("params", 4), optimizer=told("optimizer", 4)), (1,))
    verdict = judged(recorded)
    assert verdict.diagnosis == (
        "attempt 1: rank 0 went on after step 8, rank 1 after step 4: each from a checkpoint of its"
        " own"
    )
    assert status(verdict, "right checkpoint") == ["broken"]
    assert "broken" not in status(verdict, "restored: parameters")


def test_a_data_set_that_a_restart_numbers_anew_is_no_other_data(recorded: Path) -> None:
    """The rows that are left: the tensors of each batch are the due ones."""
    for path in (recorded / "struck" / "attempt-02").iterdir():
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            line |= {"ids": [2 * line["n"], 2 * line["n"] + 1]} if line["type"] == "batch" else {}
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    verdict = judged(recorded)
    assert verdict.status == "valid", render(verdict, "audit")
    assert status(verdict, "exactly once") == ["kept"]


def test_models_that_take_turns_otherwise_after_a_restart_are_unknown(tmp_path: Path) -> None:
    """Two optimizers that know nothing of each other; one goes on from an older checkpoint of its
    own and catches up first.
    """

    def lines(turns: list[tuple[str, int]], spoilt: str = "") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = [
            {"type": "process", "format": 1, "rank": 0, "world_size": 1, "attempt": 0}
        ]
        for number, (name, turn) in enumerate(turns, start=1):
            state = {"params": told(name, turn), "optimizer": told(name, turn)}
            before = {"params": told(name, turn - 1), "optimizer": told(name, turn - 1)}
            if f"{name}{turn}" == spoilt:
                state["params"] = told("other")
            objects = {name: state | {"settings": "s"}}
            step = {"type": "step", "step": number, "losses": [1.0 + turn], "who": [name]}
            kept = {"objects": {name: before | {"settings": "s"}}}
            found.append(step | {"before": kept, "objects": objects, "seconds": 0.1})
        return found

    turns = [(name, turn) for turn in range(1, 7) for name in ("a", "b")]
    again = [("b", 2), ("b", 3), *turns[6:]]
    for arm in ("ref", "ref2"):
        write(tmp_path / arm, 0, 0, lines(turns))
    for spoilt in ("", "b3"):
        write(tmp_path / "struck", 0, 0, lines(turns[:6]))
        write(tmp_path / "struck", 1, 0, lines(again, spoilt))
        launches = [{"attempt": 0, "exit_code": None, "signal": 9, "planned": True, "seconds": 1.0}]
        launches.append({"attempt": 1, "exit_code": 0, "signal": None, "seconds": 1.0})
        (tmp_path / "struck" / "arm.json").write_text(json.dumps({"launches": launches}))
        verdict = judged(tmp_path)
        assert verdict.status == ("invalid" if spoilt else "unknown"), render(verdict, "audit")
    assert "take turns in another order" not in render(verdict, "audit")


def test_an_older_checkpoint_than_the_newest_is_named(tmp_path: Path) -> None:
    for name in ("ref", "ref2"):
        write_arm(tmp_path / name, (0, LAST))
    write_arm(tmp_path / "struck", (0, 10), (4, LAST))
    verdict = judged(tmp_path)
    assert (
        verdict.diagnosis
        == "attempt 1 went on after step 4, and a checkpoint of step 8 had been finished"
    )


@pytest.mark.parametrize(("finished_by", "status"), [((0, 1), "invalid"), ((0,), "valid")])
def test_a_checkpoint_that_each_rank_writes_is_finished_when_all_have(
    tmp_path: Path, finished_by: tuple[int, ...], status: str
) -> None:
    """Both ranks write their part of every checkpoint; one may die before that of step 8."""
    for name in ("ref", "ref2"):
        write_arm(tmp_path / name, (0, LAST))
    write_arm(tmp_path / "struck", (0, 10), (4, LAST))
    for attempt, first in enumerate((0, 4)):
        for rank in (0, 1):
            (path,) = (tmp_path / "struck" / f"attempt-{attempt:02d}").glob(f"rank{rank}-*.jsonl")
            lines = [
                line
                for line in map(json.loads, path.read_text().splitlines())
                if line["type"] != "save"
            ]
            # rank 1 died before its part of step 8, and the other waited for it
            if not attempt and 1 not in finished_by:
                lines = [
                    line
                    for line in lines
                    if line["type"] not in ("batch", "step") or line.get("step", line.get("n")) <= 8
                ]
            steps = [
                step
                for step in (4, 8)
                if first < step and (step == 4 or rank in finished_by or attempt)
            ]
            lines += [
                {
                    "type": "save",
                    "path": f"out/step-{step}/random_{rank}.pkl",
                    "done": True,
                    "after_step": step - first,
                }
                for step in steps
            ]
            if rank == 0:  # what one rank writes for all may be there already
                lines += [
                    {
                        "type": "save",
                        "path": f"out/step-{step}/model.pt",
                        "done": True,
                        "after_step": step - first,
                    }
                    for step in (4, 8)
                    if first < step
                ]
            write(
                tmp_path / "struck",
                attempt,
                rank,
                [
                    line | {"path": "out/step-4/model.pt"} if line["type"] == "load" else line
                    for line in lines
                ],
            )
    verdict = judged(tmp_path)
    found = next(finding for finding in verdict.findings if finding.promise == "right checkpoint")
    assert (verdict.status, found.status) == (
        status,
        "broken" if status == "invalid" else "kept",
    ), render(verdict, "struck")


def test_a_job_that_ends_too_early_is_named(tmp_path: Path) -> None:
    for name in ("ref", "ref2"):
        write_arm(tmp_path / name, (0, LAST))
    write_arm(tmp_path / "struck", (0, 10), (8, 12))
    assert judged(tmp_path).diagnosis == "ended at step 12, the undisturbed run at step 16"


def test_a_job_that_is_not_deterministic_is_unknown_and_never_invalid(recorded: Path) -> None:
    (path,) = (recorded / "ref2" / "attempt-00").glob("rank1-*.jsonl")
    path.write_text(path.read_text().replace(told("rng", 5, 1), told("other")))
    BROKEN["parameters apart"][0](recorded)
    verdict = judged(recorded)
    assert (
        verdict.status == "unknown"
        and "differ from step 5 on, first in generators" in verdict.diagnosis
    ), render(verdict, "audit")
    assert status(verdict, "same trajectory") == ["unknown"]


def test_a_generator_that_nobody_seeds_is_left_out(recorded: Path) -> None:
    for name in ("ref", "ref2", "struck"):
        for path in sorted((recorded / name).glob("*/*.jsonl")):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            lines = [
                (
                    line | {"rng_python": told(str(path), line["step"])}
                    if line["type"] == "step"
                    else line
                )
                for line in lines
            ]
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    verdict = judged(recorded)
    assert verdict.status == "valid", render(verdict, "audit")
    assert (
        "the python generator is not seeded alike: it is not compared"
        in verdict.findings[0].evidence
    )


def test_without_a_second_undisturbed_run_the_first_attempts_show_determinism(
    recorded: Path,
) -> None:
    for path in sorted((recorded / "ref2").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (recorded / "ref2").rmdir()
    assert status(judged(recorded), "deterministic") == ["kept"]
    change(recorded, 0, at(6, losses=[0.125]))  # before any failure
    verdict = judged(recorded)
    assert (
        verdict.status == "unknown" and "differ from step 6 on, first in loss" in verdict.diagnosis
    ), render(verdict, "audit")


@pytest.mark.parametrize(("missing", "promise"), [("ref", "same trajectory")])
def test_without_references_nothing_is_called_kept(
    recorded: Path, missing: str, promise: str
) -> None:
    for name in ("ref2", "ref") if missing == "ref" else ("ref2",):
        for path in sorted((recorded / name).rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        (recorded / name).rmdir()
    verdict = judged(recorded)
    assert verdict.status == "unknown"
    assert status(verdict, promise) == ["not checked"]


@pytest.mark.parametrize(("lost", "said"), [((2,), True), ((1, 2), False), ((), False)])
def test_what_only_a_restarted_attempt_saves_wrong_is_said(
    recorded: Path, lost: tuple[int, ...], said: bool
) -> None:
    """Attempt 1 goes on from what attempt 0 saved, attempt 2 from what attempt 1 saved."""
    for attempt in lost:
        change(recorded, attempt, steps(losses=[1.5], params=told("otherwise", attempt)))
    verdict = judged(recorded)
    (finding,) = [one for one in verdict.findings if one.promise == "same trajectory"]
    assert ("broken" if lost else "kept") == finding.status
    hint = (
        "attempt 1 of struck went on from what the first attempt had saved, and was right; attempt"
        " 2 of struck from what a restarted one had saved: look at what is saved after a restart"
    )
    assert (hint in finding.evidence) == said, finding.evidence


def test_where_any_first_restart_is_wrong_nothing_is_said_of_later_saves(recorded: Path) -> None:
    change(recorded, 2, steps(losses=[1.5]))
    shutil.copytree(recorded / "struck", recorded / "alike")
    change(recorded, 1, steps(losses=[1.5]))
    evidence = [text for finding in judged(recorded).findings for text in finding.evidence]
    assert evidence and not [text for text in evidence if "restarted one" in text]


def test_other_samples_leave_generators_unjudged_and_say_so(recorded: Path) -> None:
    change(recorded, 2, starts(rng=told("elsewhere")))
    change(recorded, 2, first_batches_again)
    (finding,) = [
        one
        for one in judged(recorded).findings
        if one.promise == "restored: generators" and one.status != "kept"
    ]
    assert (finding.status, finding.message) == (
        "not checked",
        "attempt 2 took other samples for step 13, which may draw otherwise",
    )


def test_steps_done_twice_need_no_reference(recorded: Path) -> None:
    BROKEN["a loss done twice"][0](recorded)
    verdict = judge_folder(recorded / "struck", None, "auto")
    assert verdict.status == "invalid" and verdict.diagnosis.startswith(
        "step 9 was done twice and differs in loss"
    )


def test_of_the_ranks_of_a_step_done_twice_the_one_with_the_cause_is_named(recorded: Path) -> None:
    """Only rank 1 draws from other generators; its gradients are in the update of both."""
    change(recorded, 1, at(1, params=told("elsewhere")))
    change(recorded, 1, at(1, rng=told("elsewhere")), (1,))
    verdict = judge_folder(recorded / "struck", None, "auto")
    assert verdict.diagnosis.startswith(
        "step 9 was done twice and differs in generators (rank 1, attempt 1)"
    )


def test_a_rank_whose_first_pass_is_lost_is_still_the_cause(recorded: Path) -> None:
    """Rank 1 died before its first pass of step 9 was on record: the undisturbed run has it."""
    (path,) = (recorded / "struck" / "attempt-00").glob("rank1-*.jsonl")
    kept = [line for line in path.read_text().splitlines() if json.loads(line).get("step", 0) < 9]
    path.write_text("".join(f"{line}\n" for line in kept))
    change(recorded, 1, at(1, params=told("elsewhere")))
    change(recorded, 1, at(1, rng=told("elsewhere")), (1,))
    assert [
        finding.message
        for finding in judged(recorded).findings
        if finding.promise == "same trajectory"
    ] == [
        "differs from step 9 on, first in generators: torch generator was used otherwise since the"
        " restart (attempt 1)"
    ]


def test_a_run_that_goes_on_for_longer_is_equal_as_far_as_there_is_something_to_equal(
    recorded: Path,
) -> None:
    for name in ("ref", "ref2"):
        for path in (recorded / name).glob("attempt-*/*.jsonl"):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            kept = [line for line in lines if line.get("step", line.get("n", 0)) <= LAST - 2]
            path.write_text("".join(json.dumps(line) + "\n" for line in kept))
    verdict = judged(recorded)
    assert verdict.diagnosis == "ended at step 16, the undisturbed run at step 14"
    assert lines_of(verdict, "same trajectory") == [
        (
            "kept",
            "the first 14 steps are bit for bit those of the undisturbed run, which ended there",
        )
    ]
    assert lines_of(verdict, "exactly once") == [
        (
            "kept",
            "14 steps of 2 ranks consumed the samples of the undisturbed run, in its order, which"
            " ended there",
        )
    ]


def test_what_an_attempt_had_is_held_against_one_that_came_there_by_training(
    tmp_path: Path,
) -> None:
    """Attempt 1 leaves the undisturbed run and saves step 12; 2 and 3 both begin there with a scale
    that no longer is the one of attempt 1's step 13.
    """
    folder = went_elsewhere(tmp_path, (0, 8), (8, 14), (12, LAST))
    change(folder, 2, steps(scale=2.0))
    shutil.copytree(folder / "struck" / "attempt-02", folder / "struck" / "attempt-03")
    launches = json.loads((folder / "struck" / "arm.json").read_text())["launches"]
    more = {"launches": [*launches, launches[-1] | {"attempt": 3}]}
    (folder / "struck" / "arm.json").write_text(json.dumps(more))
    assert [status for status, _ in lines_of(judged(folder), "restored: scaler")] == [
        "broken",
        "broken",
    ]


def test_a_loss_that_the_update_computes_itself_follows_from_the_optimizers_state(
    recorded: Path,
) -> None:
    """LBFGS: the first loss of its closure is right, the second comes after a wrong direction."""
    for path in recorded.glob("*/attempt-*/*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            if line["type"] == "step":
                line["losses"] = [*line["losses"], 0.5]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def other_direction(line: dict[str, Any]) -> dict[str, Any]:
        if line["type"] == "step" and line["step"] == 1:
            return line | {"losses": [line["losses"][0], 0.75], "params": told("astray")}
        return line

    change(recorded, 2, starts(optimizer=told("fresh"), entries=0))
    change(recorded, 2, other_direction)
    ((_, message),) = lines_of(judged(recorded), "same trajectory")
    assert message == (
        "differs from step 13 on, first in loss: the optimizer's state before it was not that of"
        " the undisturbed run (attempt 2)"
    )


def test_a_loader_that_is_asked_beside_the_last_one_is_named(recorded: Path) -> None:
    """Two loaders are zipped: the batches of one are on no step's account."""
    for path in recorded.glob("*/attempt-*/*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        other = [
            {"type": "batch", "n": 100 + line["n"], "loader": 1, "ids": [1], "hash": "h"}
            for line in lines
            if line["type"] == "batch"
        ]
        path.write_text(
            "".join(json.dumps(line) + "\n" for line in [*lines[:1], *other, *lines[1:]])
        )
    ((said, message),) = lines_of(judged(recorded), "exactly once")
    assert said == "kept" and message.endswith(
        "only those of the DataLoader asked last in each step: of 1 more the tensors are judged,"
        " where they enter the model"
    )


def in_turn(folder: Path, part: tuple[int, int], attempt: int, live: bool = True) -> None:
    """Optimizers A and B step in turn, each from a server's weights. `part`: after which step the
    attempt begins, with the weights that both were made with, and its last step. `live`: the states
    of both are loaded, else A's alone.
    """
    first, last = part
    lines: list[dict[str, Any]] = [
        {"type": "process", "format": 1, "rank": 0, "world_size": 1, "attempt": attempt}
    ]
    held = {"A": told("made", "A"), "B": told("made", "B")}
    done = {"A": first - 1 if first else 0, "B": first if live else 0}  # their last steps
    state = {name: told("state", name, step) for name, step in done.items()}

    def both() -> dict[str, Any]:
        return {
            f"Adam[1]{name}": {"params": held[name], "optimizer": state[name], "entries": 1}
            for name in held
        }

    if first:
        lines.append({"type": "load", "path": f"out/step-{first}.pt", "after_step": 0})
    lines.append({"type": "start", "objects": both()})
    for step in range(first + 1, last + 1):
        name = "A" if step % 2 else "B"
        held[name] = told("server", name, step)
        before = both()
        held[name], state[name] = told("after", name, step, state[name]), told("state", name, step)
        lines.append(
            {
                "type": "step",
                "step": step - first,
                "losses": [float(step)],
                "objects": both(),
                "who": [f"Adam[1]{name}"],
                "before": {"objects": before},
            }
        )
        if step == 8:
            path = f"out/step-{step}.pt"
            lines += [
                {"type": "save", "path": path, "done": done, "after_step": step - first}
                for done in (False, True)
            ]
    write(folder, attempt, 0, lines)


def after_a_trial(folder: Path, first: int, last: int, attempt: int) -> None:
    """Two steps of an optimizer that is used for a trial alone, then those of A after `first` up to
    `last`. Checkpoints are saved after steps 8 and 12; that of `first` is read.
    """
    held = {"A": told("A", first), "Trial": told("Trial", 0)}
    lines: list[dict[str, Any]] = [
        {"type": "process", "format": 1, "rank": 0, "world_size": 1, "attempt": attempt},
    ]

    def file(op: str, step: int, after: int) -> dict[str, Any]:
        return {"type": "file", "op": op, "path": f"out/{step}.pt", "after_step": after}

    def both() -> dict[str, Any]:
        return {f"Adam[1]{name}": {"params": held[name], "optimizer": held[name]} for name in held}

    lines += [file("read", first, 0)] * bool(first) + [{"type": "start", "objects": both()}]
    names = ["Trial", "Trial", *["A"] * (last - first)]
    for number, name in enumerate(names, start=1):
        before, step = both(), first + number - 2
        held[name] = told(name, number if name == "Trial" else step)
        who = {"who": [f"Adam[1]{name}"], "before": {"objects": before}}
        lines.append({"type": "step", "step": number, "losses": [1.0], "objects": both(), **who})
        if name == "A" and step in (8, 12):
            path = {"type": "save", "path": f"out/{step}.pt", "after_step": number}
            lines += [{**path, "done": False}, file("write", step, number), {**path, "done": True}]
    write(folder, attempt, 0, lines)


def test_steps_that_a_restart_makes_on_trial_are_none_of_its_training(tmp_path: Path) -> None:
    after_a_trial(tmp_path / "ref", 0, LAST, 0)
    undisturbed = path_of(read_arm(tmp_path / "ref"))
    after_a_trial(tmp_path / "struck", 0, 10, 0)
    after_a_trial(tmp_path / "struck", 8, LAST, 1)
    arm = without_trial_steps(read_arm(tmp_path / "struck"), undisturbed)
    (process,) = arm.attempts[1]
    assert [step.number for step in process.steps] == list(range(1, LAST - 8 + 1))
    assert {name for step in process.steps for name in step.optimizers} == {"Adam[1]A"}
    assert {name for step in process.steps for name in step.optimizers_before} == {"Adam[1]A"}
    assert {save["after_step"] for save in process.saves} == {12 - 8}
    assert [(one.attempt, one.path) for one in reads(arm)] == [(1, "out/8.pt")]
    assert path_of(arm, undisturbed).resumed[0].after == 2 + 8  # two on trial before them


def test_the_last_step_with_a_state_is_the_last_of_all_that_had_it() -> None:
    had = {"A": OptimizerState(params="p")}
    states = tuple(RecordedState(step, AFTER, had) for step in (16, 8, 1))
    begun = Resumed(1, 8, "content", (), None, states=states)
    assert begun.steps_with("params", "A", "p") == [1, 8, 16]
    assert begun.steps_with("optimizer", "A", "p") == []


@pytest.mark.parametrize("live", [True, False])
def test_what_an_optimizer_holds_that_is_written_anew_before_its_turn_is_dead(
    tmp_path: Path, live: bool
) -> None:
    for name in ("ref", "ref2"):
        in_turn(tmp_path / name, (0, LAST), 0)
    in_turn(tmp_path / "struck", (0, 11), 0)
    in_turn(tmp_path / "struck", (8, LAST), 1, live)
    ends = [{"exit_code": 1, "planned": True}, {"exit_code": 0}]
    launches = [
        {"attempt": number, "seconds": 1.0, "signal": None, **end}
        for number, end in enumerate(ends)
    ]
    (tmp_path / "struck" / "arm.json").write_text(json.dumps({"launches": launches}))
    verdict = judged(tmp_path)
    assert status(verdict, "restored: parameters") == ["kept"]
    assert verdict.status == ("valid" if live else "invalid"), render(verdict, "audit")
    assert live or verdict.diagnosis.startswith(
        "the optimizer's state of Adam[1]B before step 9 is that of step 1"
    ), verdict.diagnosis


def test_what_attempts_share_is_said_once() -> None:
    findings = tuple(
        ArmFinding("restored", "kept", f"attempt {number} began with step {step}", "twice", 3)
        for number, step in ((1, 4), (2, 4), (3, 8), (4, 4))
    )
    lines = render(AuditVerdict("valid", "well", findings, (), (), ()), "a").splitlines()
    assert [line.split(": ", 1)[1] for line in lines[1:]] == [
        "attempt 1 began with step 4 (attempts 2, 4 alike)",
        "attempt 3 began with step 8",
    ]


def test_a_step_with_fewer_batches_is_told_from_a_lost_position(recorded: Path) -> None:
    """Accumulation that was not restored: each step takes the first of its two samples."""
    change(recorded, 2, lambda line: line | {"ids": line["ids"][:1]} if "ids" in line else line)
    assert judged(recorded).diagnosis == (
        "step 13 consumed the first 1 of 2 samples that were due (rank 0, attempt 2): it took fewer"
        " batches, or smaller ones, than that step is to have"
    )


def test_steps_are_counted_apart_from_ranks(recorded: Path) -> None:
    (finding,) = [one for one in judged(recorded).findings if one.promise == "exactly once"]
    assert finding.message == (
        "16 steps of 2 ranks consumed the samples of the undisturbed run, in its order"
    )


@pytest.mark.parametrize(
    ("who", "why"),
    [
        ("SGD[2]cd", "SGD of 2 tensors {}: what tells whose turn it is (a counter, say) was"),
        ("Adam[3]cd", "Adam of 3 tensors {}: the model trained other tensors: load_state_dict("),
    ],
)
def test_an_optimizer_that_was_not_due_is_explained(recorded: Path, who: str, why: str) -> None:
    for path in recorded.glob("*/attempt-*/*.jsonl"):
        lines = [
            steps(who=["Adam[2]ab"])(json.loads(line)) for line in path.read_text().splitlines()
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    change(recorded, 2, at(1, who=[who], params=told("led astray")))
    assert why.format("stepped where Adam of 2 tensors was due") in judged(recorded).diagnosis


def test_samples_in_any_order_are_judged_by_how_often_they_came(recorded: Path) -> None:
    swapped = {13: 14, 14: 13}
    change(
        recorded,
        2,
        lambda line: (
            line | {"ids": ids(swapped.get(line["n"] + 12, line["n"] + 12), 0)}
            if line["type"] == "batch"
            else line
        ),
        (0,),
    )
    assert status(judged(recorded, "free"), "exactly once") == ["kept"]
    assert status(judged(recorded, "declared"), "exactly once") == ["broken"]
    change(
        recorded,
        2,
        lambda line: (
            line | {"ids": ids(1, 0)} if line["type"] == "batch" and line["n"] == 4 else line
        ),
        (0,),
    )
    (finding,) = [
        finding
        for finding in judged(recorded, "free").findings
        if finding.promise == "exactly once"
    ]
    assert finding.status == "broken" and finding.message.startswith(
        "2 samples came too often and 2 are missing, of 64"
    )


@pytest.mark.parametrize(("first", "due"), [(13, "kept"), (14, "broken")])
def test_what_a_step_had_consumed_before_a_restart_is_not_missing(
    recorded: Path, first: int, due: str
) -> None:
    """Step 13 consumes two batches, between which the job saves and dies."""
    for path in (*(recorded / "ref").rglob("*.jsonl"), *(recorded / "ref2").rglob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        lines = [
            line | {"ids": [90, 91, *line["ids"]]}
            if (line["type"], line.get("n")) == ("batch", 13)
            else line
            for line in lines
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    change(
        recorded,
        2,
        lambda line: (
            line | {"ids": ids(first, 0)} if (line["type"], line.get("n")) == ("batch", 1) else line
        ),
        (0,),
    )
    assert status(judged(recorded, "free"), "exactly once") == [due]


def test_a_generator_without_effect_breaks_nothing_where_a_step_is_done_again_in_part(
    tmp_path: Path,
) -> None:
    for name in ("ref", "ref2"):
        write_arm(tmp_path / name, (0, LAST))
    write_arm(tmp_path / "struck", (0, 10), (8, LAST))
    for path in tmp_path.rglob("*.jsonl"):
        again = path.parent.name == "attempt-01"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            if line["type"] == "batch" and line["n"] == 9 and not again:
                line["ids"] = [90, 91, *line["ids"]]
            if line["type"] in ("start", "step") and again:
                line["rng"] = told("another seed of the loader", line.get("step"))
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    verdict = judged(tmp_path)
    assert verdict.status == "valid", render(verdict, "audit")


def test_what_the_recorder_could_not_see_makes_it_unknown(recorded: Path) -> None:
    (path,) = (recorded / "struck" / "attempt-02").glob("rank0-*.jsonl")
    path.write_text(
        path.read_text()
        + json.dumps({"type": "trouble", "what": "batch", "error": "TypeError: x"})
        + "\n"
    )
    verdict = judged(recorded)
    assert (
        verdict.status == "unknown"
        and verdict.diagnosis
        == "the recorder could not see everything: struck: batch: TypeError: x"
    )


def test_a_torn_last_line_and_unknown_keys_are_no_error(recorded: Path) -> None:
    (path,) = (recorded / "struck" / "attempt-00").glob("rank1-*.jsonl")
    path.write_text(path.read_text() + '{"type":"later","x":1}\n{"type":"step","step":11,"los')
    assert judged(recorded).status == "valid"


def test_a_declared_recording_by_hand_is_judged(tmp_path: Path) -> None:
    """What `rec.step(step, loss=..., samples=...)` writes: no digests, the job's own numbers."""

    def lines(first: int, last: int) -> list[dict[str, Any]]:
        told_steps = [
            {"type": "step", "step": s, "declared": True, "losses": [float(s)], "ids": [s, s + 100]}
            for s in range(first, last + 1)
        ]
        return [{"type": "process", "format": 1, "rank": 0, "world_size": 1}, *told_steps]

    write(tmp_path / "ref", 0, 0, lines(1, 9))
    write(tmp_path / "ref2", 0, 0, lines(1, 9))
    write(tmp_path / "struck", 0, 0, lines(1, 6))
    write(tmp_path / "struck", 1, 0, lines(5, 9))
    assert judged(tmp_path).status == "valid"
    write(
        tmp_path / "struck",
        1,
        0,
        [line | {"ids": [1, 101]} if line.get("step") == 7 else line for line in lines(5, 9)],
    )
    assert judged(tmp_path).diagnosis.startswith(
        "step 7 repeats the samples of step 1 (rank 0, attempt 1)"
    )


HOSTILE = {
    "another format": (
        '{"type":"process","format":9,"rank":0,"world_size":1}',
        "format 9, this ECRL reads 1",
    ),
    "a rank beyond all": (
        '{"type":"process","format":1,"rank":99999999999,"world_size":1}',
        "is no count from 0 to",
    ),
    "a step below zero": ('{"type":"step","step":-1}', "is no count from 0 to"),
    "a word for a number": ('{"type":"step","step":1,"losses":["x"]}', "is no line of format 1"),
    "no object": ("[1]", "is no object with a type"),
    "ids of text": ('{"type":"batch","n":1,"ids":["a"]}', "is no line of format 1"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_recording_is_refused_by_name(recorded: Path, name: str) -> None:
    line, said = HOSTILE[name]
    (path,) = (recorded / "struck" / "attempt-01").glob("rank0-*.jsonl")
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(RecordError, match=path.name) as raised:
        judged(recorded)
    assert said in raised.value.line()


def test_a_link_in_place_of_a_record_is_refused(recorded: Path, tmp_path: Path) -> None:
    (path,) = (recorded / "struck" / "attempt-01").glob("rank0-*.jsonl")
    path.rename(tmp_path / "elsewhere.jsonl")
    path.symlink_to(tmp_path / "elsewhere.jsonl")
    with pytest.raises(RecordError, match="is not a regular file"):
        read_arm(recorded / "struck")


def test_nothing_recorded_is_said(tmp_path: Path) -> None:
    write(tmp_path / "struck", 0, 0, attempt_lines(0, 0, 0)[:1])
    with pytest.raises(EvidenceMissing, match="no step is on record"):
        judged(tmp_path)


def test_the_command_answers_with_text_page_json_and_junit(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    BROKEN["data position"][0](recorded)
    change(
        recorded,
        0,
        lambda line: (
            line | {"path": "<script>alert(1)</script>\x1b[2J"} if line["type"] == "save" else line
        ),
    )
    change(
        recorded,
        1,
        lambda line: (
            line | {"what": "DistributedSampler.set_epoch", "epoch": "<b>\x1b[31m"}
            if line["type"] == "call"
            else line
        ),
    )
    code = audit(
        [str(recorded), "--junit", str(tmp_path / "out.xml"), "--github"], say=lambda line: None
    )
    text, told = capsys.readouterr()
    document = json.loads((recorded / "audit.json").read_text())
    page, junit = (
        (recorded / "report" / "index.html").read_text(),
        (tmp_path / "out.xml").read_text(),
    )
    assert (
        code == 1
        and text.startswith("audit: invalid: step 13 repeats the samples of step 1")
        and "\x1b" not in text
    )
    assert (
        document["status"] == "invalid"
        and document["counts"]["broken"] >= 1
        and document["diagnosis"] in text
    )
    assert "step 13 repeats the samples" in page and "<script>" not in page and "\x1b" not in page
    assert re.search(
        r'<testcase classname="struck" name="exactly once" time="\d+\.\d{3}"><failure message="step'
        r" 13 repeats",
        junit,
    )
    assert (
        'time="10.000"><properties>' in junit
        and '<property name="verdict" value="invalid"/>' in junit
    )
    assert (
        "\n::error title=struck%3A exactly once::step 13 repeats" in f"\n{told}"
        and "\x1b" not in told
    )


def test_the_page_colours_only_what_was_compared(recorded: Path) -> None:
    """The first undisturbed run is compared with nothing, the second with it; the arm that differs
    comes first.
    """
    BROKEN["parameters apart"][0](recorded)
    text = page("audit", judged(recorded))
    drawn = {part.split("<")[0]: part for part in text.split("<h3>")[1:]}
    assert list(drawn) == ["struck", "ref", "ref2"]
    assert (
        "parameters, steps 14 to 14: different" in drawn["struck"]
        and "samples, steps 1 to 16: equal" in drawn["struck"]
    )
    assert (
        ": equal" not in drawn["ref"] and "parameters, steps 1 to 16: not compared" in drawn["ref"]
    )
    assert "parameters, steps 1 to 16: equal" in drawn["ref2"]
    assert "python generator, steps 1 to 16: not recorded" in drawn["struck"]


def test_the_page_says_in_words_what_the_colours_say_and_a_step_of_no_undisturbed_run_is_not_equal(
    recorded: Path,
) -> None:
    for arm in ("ref", "ref2"):
        shutil.rmtree(recorded / arm)
        write_arm(recorded / arm, (0, 14))
    text = page("audit", judged(recorded))
    struck = {part.split("<")[0]: part for part in text.split("<h3>")[1:]}["struck"]
    assert (
        "samples, steps 1 to 14: equal" in struck
        and "samples, steps 15 to 16: not done undisturbed" in struck
    )
    assert re.search(
        r"<div class=\"dim\">the undisturbed run never did this step: samples, [^<]*\(steps 15 to"
        r" 16\)</div>",
        struck,
    )
    assert all(f">{words}</li>" in text for words in STATES.values()), "a legend"


def test_the_page_names_command_versions_attempts_and_their_last_words(recorded: Path) -> None:
    log = recorded / "struck" / "attempt-01" / "output.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"epoch 1\n" * 900 + b"CUDA <error>\x1b[31m\xff\n")
    write_result(recorded, judged(recorded), {"command": ["python", "train.py", "--name", "<b>"]})
    text = (recorded / "report" / "index.html").read_text()
    assert "python train.py --name &lt;b&gt;" in text and f"ECRL {__version__}" in text
    assert 'href="../struck/attempt-01/output.log"' in text and text.count("output.log</a>") == len(
        [*recorded.glob("*/attempt-*/output.log")]
    )
    words = text.partition("last words of struck, attempt 1</summary>")[2].partition("</pre>")[0]
    assert "CUDA &lt;error&gt;" in words and "\x1b" not in words and words.count("epoch 1") == 5
    link = recorded / "struck" / "attempt-00" / "output.log"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    (recorded.parent / "elsewhere").write_text("a secret")
    link.symlink_to(recorded.parent / "elsewhere")
    write_result(recorded, judged(recorded), {})
    assert "a secret" not in (recorded / "report" / "index.html").read_text(), (
        "a stranger's recording may point elsewhere"
    )


def test_the_page_says_what_each_arm_cost(recorded: Path) -> None:
    """Two deaths, four steps done again of half a second each in 6 s of wall time; one save that
    took 20 ms.
    """
    change(
        recorded,
        0,
        lambda line: (
            line | {"seconds": 0.02}
            if line["type"] == "save" and line["done"] and line["after_step"] == 4
            else line
        ),
        (0,),
    )
    change(
        recorded,
        0,
        lambda line: line | {"at": 10.0 + line["step"]} if line["type"] == "step" else line,
    )
    change(
        recorded,
        1,
        lambda line: line | {"at": 25.0 + line["step"]} if line["type"] == "step" else line,
    )
    verdict = judged(recorded)
    costs = costs_of(verdict.arms[0])
    assert (costs.attempts, costs.steps, costs.steps_done_again, costs.save_seconds) == (
        3,
        16,
        2,
        (0.02,),
    )
    assert (
        costs.restart_seconds == (6.0,)
        and costs.attempt_seconds == (2.0, 2.0, 2.0)
        and costs.goodput == 1.0
    )
    text = page("audit", verdict)
    assert (
        "20 ms, at most 20 ms (1)" in text
        and ">6.0 s</td>" in text
        and text.count('class="death"') == 2
    )
    assert ">attempt 0</text>" in text and 'text-anchor="end">16</text>' in text


def test_the_earliest_broken_promise_is_the_diagnosis(recorded: Path) -> None:
    """A scaler that begins anew overflows two steps later, and the samples of that window are on no
    step's account: they are no cause.
    """
    change(recorded, 2, at(1, scale=16.0))
    change(
        recorded,
        2,
        lambda line: (
            line | {"ids": ids(line["n"] + 1, 0)}
            if line["type"] == "batch" and line["n"] > 2
            else line
        ),
        (0,),
    )
    verdict = judged(recorded)
    assert lines_of(verdict, "exactly once") == [
        (
            "not checked",
            "the run had left the undisturbed one at step 13, and that step 15 has other samples"
            " may follow from it",
        )
    ]
    assert (
        verdict.diagnosis
        == "in step 13, rank 0, 1: the gradient scaler was not restored (attempt 2)"
    )


def overflow_before_step_15(recorded: Path) -> None:
    """In the last attempt, which goes on after step 12, rank 1 skips a step after its second one:
    the batches of step 15 are others by nature.
    """
    change(
        recorded,
        2,
        lambda line: (
            line | {"ids": ids(16, 1)} if line["type"] == "batch" and line["n"] == 3 else line
        ),
        (1,),
    )
    (path,) = (recorded / "struck" / "attempt-02").glob("rank1-*.jsonl")
    path.write_text(
        path.read_text() + json.dumps({"type": "skip", "after_step": 2, "batches": []}) + "\n"
    )


def test_another_number_of_overflows_is_the_scaler_and_not_the_data(recorded: Path) -> None:
    overflow_before_step_15(recorded)
    verdict = judged(recorded)
    said = "before step 15, gradients of rank 1 overflowed once, in the undisturbed run never"
    assert verdict.diagnosis == f"{said}: the gradient scaler was not restored"
    (finding,) = [found for found in verdict.findings if found.promise == "exactly once"]
    assert (
        finding.status == "not checked"
        and finding.message == f"{said}: from there on the steps have other samples by nature"
    )
    (finding,) = [found for found in verdict.findings if found.promise == "same trajectory"]
    assert finding.message.endswith(": it follows from the gradient scaler (see restored: scaler)")


def test_overflows_after_the_run_went_elsewhere_are_no_cause(recorded: Path) -> None:
    """The generators differ from step 13 on; gradients of rank 1 overflow before step 15."""
    change(recorded, 2, steps(rng=told("elsewhere"), params=told("elsewhere")))
    overflow_before_step_15(recorded)
    verdict = judged(recorded)
    assert "the gradient scaler was not restored" not in render(verdict, "audit")
    assert status(verdict, "exactly once") == ["not checked"]
    assert verdict.diagnosis.startswith("differs from step 13 on, first in generators")


@pytest.mark.parametrize("words", [["."], ["--", "true", "{dir}"]])
def test_a_report_that_could_not_be_written_is_refused_before_anything_is_done(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError, match="cannot be written; name a file in a folder that there is"
    ):
        audit(["--junit", "none/out.xml", *words], say=lambda line: None)
    assert list(tmp_path.iterdir()) == []


def test_samples_in_any_order_are_not_missing_where_the_job_ended_early(recorded: Path) -> None:
    for rank in (0, 1):
        (path,) = (recorded / "struck" / "attempt-02").glob(f"rank{rank}-*.jsonl")
        path.write_text("\n".join(path.read_text().splitlines()[:5]) + "\n")
    verdict = judged(recorded, "free")
    assert status(verdict, "exactly once") == ["kept"]
    assert verdict.diagnosis == "ended at step 13, the undisturbed run at step 16"


def test_what_an_attempt_began_with_is_no_proof_for_the_next(tmp_path: Path) -> None:
    """Two restarts in a row lose the same state: the second is not right because the first began
    so.
    """
    for name in ("ref", "ref2"):
        write_arm(tmp_path / name, (0, LAST))
    write_arm(tmp_path / "struck", (0, 10), (8, 10), (8, LAST))
    for attempt in (1, 2):
        change(tmp_path, attempt, starts(optimizer=told("fresh"), entries=0))
    lost = [
        finding for finding in judged(tmp_path).findings if finding.promise == "restored: optimizer"
    ]
    assert [finding.status for finding in lost] == ["broken", "broken"], [
        finding.message for finding in lost
    ]


def lost_its_way(line: dict[str, Any]) -> dict[str, Any]:
    """What an attempt records that follows the undisturbed run no more."""
    if line["type"] != "step":
        return line
    names = ("params", "optimizer", "settings", "rng")
    return line | {name: told("elsewhere", line[name]) for name in names}


def went_elsewhere(folder: Path, *parts: tuple[int, int]) -> Path:
    """Attempt 1 trains otherwise from its first step on, and attempt 2 goes on with what that one
    had. `parts`: as in write_arm.
    """
    for name in ("ref", "ref2"):
        write_arm(folder / name, (0, LAST))
    write_arm(folder / "struck", *parts)
    (_, last), (after, _) = parts[1:]
    change(folder, 1, lost_its_way)
    change(folder, 2, lost_its_way)
    resumed = {name: told("elsewhere", told(name, after)) for name in ("params", "optimizer")}
    ahead = {}
    if after < last:
        ahead = {"settings": told("elsewhere", told("settings", after + 1))}

    def with_its_state(line: dict[str, Any]) -> dict[str, Any]:
        return line | resumed | ahead if line["type"] == "start" else line

    change(folder, 2, with_its_state)
    return folder


def lines_of(verdict: AuditVerdict, promise: str) -> list[tuple[str, str]]:
    return [
        (finding.status, finding.message)
        for finding in verdict.findings
        if finding.promise == promise and "attempt 1" not in finding.message
    ]


def test_a_second_restart_is_held_against_what_the_run_itself_had(tmp_path: Path) -> None:
    """Attempt 1 left the undisturbed run at step 9 and died after step 14; attempt 2 goes on from
    its checkpoint of step 12. What it did not bring back is seen in its own first pass of step 13.
    """
    folder = went_elsewhere(tmp_path, (0, 10), (8, 14), (12, LAST))
    verdict = judged(folder)
    aside = "(of this run, which had left the undisturbed one at step 9)"
    assert ("kept", f"attempt 2 began with the parameters of step 12 {aside}") in lines_of(
        verdict, "restored: parameters"
    )
    assert (
        "kept",
        "attempt 2 had those of its own first pass before step 13",
    ) in lines_of(verdict, "restored: schedule and settings")
    assert contradictions([encode(finding) for finding in verdict.findings]) == []
    settings = {"settings": told("a fresh schedule")}
    change(folder, 2, lambda line: line | settings if line["type"] == "start" else line)
    assert [
        status for status, _ in lines_of(judged(folder), "restored: schedule and settings")
    ] == ["broken"]


def test_a_difference_that_may_be_of_an_earlier_restart_is_not_called_a_loss_of_the_second(
    tmp_path: Path,
) -> None:
    """Attempt 1 left the undisturbed run at step 9 and died after its checkpoint of step 12:
    nothing tells which rate this run had before step 13.
    """
    folder = went_elsewhere(tmp_path, (0, 10), (8, 12), (12, LAST))
    settings = {"settings": told("whatever was right")}
    change(folder, 2, lambda line: line | settings if line["type"] == "start" else line)
    (line,) = lines_of(judged(folder), "restored: schedule and settings")
    assert line == (
        "not checked",
        "the run had left the undisturbed one at step 9, and it has no first pass of step 13 to"
        " compare with",
    )


def test_a_schedule_whose_rate_came_back_for_one_update_was_not_restored(recorded: Path) -> None:
    """The optimizer's groups carry the rate of the next update; what sets it began anew."""

    def begun_anew(line: dict[str, Any]) -> dict[str, Any]:
        if line["type"] != "step" or line["step"] == 1:
            return line
        return line | {"settings": told("settings", line["step"]), "lr": [0.1 / line["step"]]}

    change(recorded, 2, begun_anew)
    verdict = judged(recorded)
    assert verdict.diagnosis == (
        "1 update after attempt 2 began, in step 14, rank 0, 1: the learning-rate schedule, or what"
        " else sets the optimizer's settings, goes on otherwise: it was not restored"
    )
    assert "kept" not in [
        status for status, _ in lines_of(verdict, "restored: schedule and settings")
    ]


def test_an_earlier_difference_goes_before_a_step_done_twice(tmp_path: Path) -> None:
    """Attempt 1 leaves the undisturbed run at step 9; steps 13 and 14 are done twice, not alike."""
    folder = went_elsewhere(tmp_path, (0, 8), (8, 14), (12, LAST))
    change(folder, 2, steps(params=told("a third way")))
    (finding,) = [
        finding for finding in judged(folder).findings if finding.promise == "same trajectory"
    ]
    assert finding.step == 9 and finding.message.startswith("differs from step 9 on"), finding


def test_two_optimizers_that_are_called_the_same_are_numbered() -> None:
    every = ["Adam[4]ab", "SGD[4]ab", "Adam[4]cd"]
    assert [in_words(name, every) for name in every] == [
        "Adam of 4 tensors, number 1",
        "SGD of 4 tensors",
        "Adam of 4 tensors, number 2",
    ]


def test_the_headline_names_the_arm_where_there_are_several(recorded: Path) -> None:
    change(recorded, 2, starts(optimizer=told("fresh"), entries=0))
    assert "[struck]" not in render(judged(recorded), "audit").splitlines()[0]
    shutil.copytree(recorded / "struck", recorded / "twice")
    assert render(judged(recorded), "audit").splitlines()[0].endswith(" [struck, twice]")


def test_tensors_of_another_step_at_the_models_door_are_a_lost_position(tmp_path: Path) -> None:
    """A job without a DataLoader begins its data anew after the restart."""
    for name in ("ref", "ref2"):
        write_arm(tmp_path / name, (0, LAST))
    write_arm(tmp_path / "struck", (0, 10), (8, LAST))

    def at_the_door(begun: int, taken_from: int) -> Change:
        def edit(line: dict[str, Any]) -> dict[str, Any] | None:
            if line["type"] != "step":
                return None if line["type"] == "batch" else line
            place = line["step"] + taken_from
            other = {} if begun == taken_from else {"params": told("led astray", line["params"])}
            return line | other | {"batches": [], "entered": [told("entered", place)]}

        return edit

    for arm in ("ref", "ref2"):
        for path in (tmp_path / arm / "attempt-00").glob("*.jsonl"):
            edited = [at_the_door(0, 0)(json.loads(line)) for line in path.read_text().splitlines()]
            path.write_text("".join(json.dumps(line) + "\n" for line in edited if line))
    change(tmp_path, 0, at_the_door(0, 0))
    change(tmp_path, 1, at_the_door(8, 0))
    assert judged(tmp_path).diagnosis == (
        "step 9 was done twice and differs in model input (rank 0, attempt 1): the tensors of step"
        " 1 entered the model: the data position was not restored"
    )


def test_a_job_of_too_few_steps_is_told_what_the_recorder_could_not_see(tmp_path: Path) -> None:
    write_arm(tmp_path, (0, 1))
    (path,) = tmp_path.glob("attempt-00/rank0-*.jsonl")
    trouble = {"type": "trouble", "what": "step", "error": "TypeError: x"}
    path.write_text(path.read_text() + json.dumps(trouble) + "\n")
    error = too_few_steps(judged_arm(read_arm(tmp_path)))
    assert "and the recorder could not see everything: step: TypeError: x" in str(error)
