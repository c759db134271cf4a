"""The promise `restored`: the state that each resumed attempt began with, part by part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ecrl_cli.audit.causes import DCP_LEFT_OUT, generator_lost
from ecrl_cli.audit.components import (
    BROKEN,
    BY_THREAD,
    DIGEST_OF,
    GENERATORS,
    KEPT,
    MEANING,
    NOT_CHECKED,
    SCALER,
    TWO_MOMENTS,
    ArmFinding,
    Judged,
    differing,
    in_words,
    named,
    optimizers_apart,
)
from ecrl_cli.audit.lineage import CommittedSteps, Resumed
from ecrl_cli.audit.steps import Step, same_number
from ecrl_cli.errors import plural

MOMENTS = 64  # steps ahead in which a part of the state is looked for
_BY_DCP = "dcp"  # who read a file, in a line of the recording
Stable = Callable[[str], bool]  # whether undisturbed runs agree in a component
Rows = list[tuple[int, Step, Step]]  # rank, a step of the attempt, the step that was due
_GLOBAL = {
    "generators": "torch's global generator",
    "python generator": "Python's global generator",
    "numpy generator": "numpy's global generator",
}


@dataclass(frozen=True)
class Due:
    """The state that was due when an attempt began.

    `step_of`: by number and rank, the step to compare with, None if it is not on record; `whose`:
    the run that it is of, in words. `left`: the step at which the run itself had left the
    undisturbed one before the attempt began, or None. `certain`: whether a difference shows that
    something was not restored. After the run left the undisturbed one only its own first passes do.
    """

    whose: str
    step_of: Callable[[int, int], Step | None]
    left: int | None = None
    certain: bool = True

    @property
    def aside(self) -> str:
        """Words behind a state that is this run's own and no longer the undisturbed run's."""
        if self.left is None:
            return ""
        return f" (of this run, which had left the undisturbed one at step {self.left})"


def restored(judged: Judged, reference: Judged | None, stable: Stable) -> Iterator[ArmFinding]:
    """The state that each resumed attempt began with. `stable`: of the components that undisturbed
    runs agree in, the undisturbed run tells too.
    """

    def known(component: str) -> bool:
        return stable(component) and component not in judged.ignored

    for begun in judged.path.resumed:
        if begun.began:  # else no step is on record: `same end` and `progress` judge that
            for finding in _of_attempt(judged, begun, reference, known):
                unclear = (
                    len(judged.path.resumed) > 1
                    and finding.status == BROKEN
                    and "attempt" not in finding.message
                )
                yield (
                    replace(finding, message=f"{finding.message} (attempt {begun.attempt})")
                    if unclear
                    else finding
                )
    drawn = sorted(judged.without_effect & set(GENERATORS))
    if drawn:
        said = (
            f"{' and '.join(_GLOBAL[name] for name in drawn)} is in another state after a restart,"
            " and nothing that was drawn from it shows in any step"
        )
        yield ArmFinding("restored: generators", NOT_CHECKED, said, judged.arm.name)
    if "optimizer" in judged.without_effect:
        said = (
            "the optimizer's state is another after a restart, and every update that followed is"
            " right: it is kept in another form"
        )
        yield ArmFinding("restored: optimizer", NOT_CHECKED, said, judged.arm.name)


def _of_attempt(
    judged: Judged, begun: Resumed, reference: Judged | None, stable: Stable
) -> Iterator[ArmFinding]:
    arm, who = judged.arm.name, f"attempt {begun.attempt}"
    due = _due(judged, begun, reference)
    if begun.proof != "content":
        yield _of_no_step(judged, begun, reference if stable("parameters") else None)
        return
    if not begun.after or begun.elsewhere:
        return  # it began anew, or its ranks apart: `right checkpoint` judges that
    next_step = begun.after + 1
    lost = {
        rank: [
            name
            for name in _apart(begun, rank, "params")
            if not _written_anew(judged, begun, rank, name)
        ]
        for rank in sorted(begun.began)
    }
    strays = [rank for rank, names in lost.items() if names and rank != min(begun.began)]
    if lost[min(begun.began)]:
        yield ArmFinding(
            "restored: parameters",
            BROKEN,
            _parameters_lost(begun, lost[min(begun.began)]),
            arm,
            next_step,
        )
    elif strays:
        ranks = ", ".join(map(str, strays))
        said = (
            f"rank {ranks} began {who} with parameters{_whose(begun, lost[strays[0]])} that no rank"
            f" had after step {begun.after}"
        )
        yield ArmFinding(
            "restored: parameters", BROKEN, f"{said}: they were not restored", arm, next_step
        )
    else:
        yield ArmFinding(
            "restored: parameters",
            KEPT,
            f"{who} began with the parameters of step {begun.after}{due.aside}",
            arm,
        )
    if "optimizer" not in judged.ignored:
        yield from _optimizer(judged, begun, due.aside)
    if begun.attempt in judged.path.resized:
        said = (
            f"{who} had another number of processes: generators are a rank's own, and a schedule"
            " may depend on their number"
        )
        yield ArmFinding("restored: generators", NOT_CHECKED, said, arm)
    elif reference is not None:
        yield from _against(judged, begun, due, stable)


def _due(judged: Judged, begun: Resumed, reference: Judged | None) -> Due:
    """The undisturbed run's steps; where the run had left it before the attempt began, its own
    first passes of the steps that the attempt did again.
    """

    def theirs(number: int, rank: int) -> Step | None:
        entry = reference.path.steps.get(number, {}).get(rank) if reference is not None else None
        return None if entry is None else entry[1]

    left = min((step for step in judged.differs if step <= (begun.after or 0)), default=None)
    if left is None:
        return Due("the undisturbed run", theirs)
    own = _own_passes(judged.path, begun)
    if any(number == (begun.after or 0) + 1 for number, _ in own):
        return Due("its own first pass", lambda *place: own.get(place), left)
    return Due("the undisturbed run", theirs, left, certain=False)


def _own_passes(path: CommittedSteps, begun: Resumed) -> dict[tuple[int, int], Step]:
    """By number and rank, the steps that the attempt did again as they were done by an attempt that
    came to where this one began: not by those that began there too.
    """
    passes: dict[tuple[int, int], Step] = {}
    for number, rank, attempt, first, again in path.done_again:
        if attempt <= begun.attempt:
            passes.setdefault((number, rank), first)
        if attempt < begun.attempt and path.offsets[attempt] < (begun.after or 0):
            passes[number, rank] = again
    here = {place[:2] for place in path.done_again if place[2] == begun.attempt}
    return {place: step for place, step in passes.items() if place in here}


def _of_no_step(judged: Judged, begun: Resumed, reference: Judged | None) -> ArmFinding:
    """The parameters are those of no step on record: broken where every state that there was is on
    record.
    """
    arm, promise = judged.arm.name, "restored: parameters"
    if said := _other_optimizer(begun):
        return ArmFinding("restored: optimizer", BROKEN, said, arm, begun.newest_saved or 0)
    dense = reference is not None and {
        recorded.step for recorded in reference.path.states()
    } >= set(range(reference.path.last))
    if not begun.comparable and not dense:
        return ArmFinding(
            promise,
            NOT_CHECKED,
            "no digest of the state after the newest checkpoint is on record (audit.digests)",
            arm,
        )
    said = (
        f"the parameters before the first step of attempt {begun.attempt} are those of no earlier"
        " step"
    )
    return ArmFinding(
        promise,
        BROKEN,
        f"{said}: they were not restored as they were, or the optimizer has them in another order",
        arm,
        begun.newest_saved or 0,
    )


def _other_optimizer(begun: Resumed) -> str:
    """The fault where the attempt trains the parameters of a step on record with an optimizer
    that nobody trained them with; else nothing.
    """
    mine = begun.began[min(begun.began)]
    held = {
        (state.params, recorded.step, name)
        for recorded in begun.states
        for name, state in recorded.optimizers.items()
    }
    for name, state in mine.items():
        others = [(step, other) for params, step, other in held if params == state.params != ""]
        if others and all(other not in mine for _, other in others):
            step, other = max(others)
            return (
                f"attempt {begun.attempt} trains the parameters of step {step} with"
                f" {in_words(name, mine)}, and they were trained with {in_words(other)}: the"
                " optimizer is another one"
            )
    return ""


def _apart(begun: Resumed, rank: int, key: str) -> list[str]:
    """The optimizers of which no rank had, after step `begun.after`, what this rank began with."""
    names = []
    for name, state in begun.began[rank].items():
        due = {getattr(one, key) for one in begun.due.get(name, ()) if getattr(one, key)}
        if due and getattr(state, key) and getattr(state, key) not in due:
            names.append(name)
    return names


def _written_anew(judged: Judged, begun: Resumed, rank: int, name: str) -> bool:
    """Whether the parameters that the optimizer began with are none of those that it steps: the job
    writes others before its first turn (those of a server, say).
    """
    turns = (
        step.optimizers_before[name].params
        for process in judged.arm.attempts[begun.attempt]
        if process.rank == rank
        for step in process.steps
        if name in step.who and name in step.optimizers_before
    )
    first = next(turns, None)
    return first is not None and first != begun.began[rank][name].params


def _whose(begun: Resumed, names: list[str]) -> str:
    return named(names, begun.began[min(begun.began)])


def _parameters_lost(begun: Resumed, names: list[str]) -> str:
    name = names[0]
    elsewhere = begun.steps_with("params", name, begun.began[min(begun.began)][name].params)
    if begun.after in elsewhere:
        return (
            f"the parameters{_whose(begun, names)} before step {begun.after + 1} are those that"
            f" were saved after step {begun.after}, and the undisturbed run went on with others:"
            " the save holds other weights than are trained (an average, say)"
        )
    where = f"those of step {elsewhere[-1]}" if elsewhere else "those of no earlier step"
    said = f"the parameters{_whose(begun, names)} before step {(begun.after or 0) + 1} are {where}"
    return (
        f"{said}, the rest of attempt {begun.attempt} began with step {begun.after}: they were not"
        " restored"
    )


def _made_by(judged: Judged, attempt: int) -> tuple[str, ...]:
    """The calls that made a step of an optimizer that had made none, before the first update of
    `attempt`: in words, as evidence.
    """
    calls = [
        call
        for process in judged.arm.attempts.get(attempt, ())
        for call in process.calls
        if call.get("what") == "Optimizer.step" and call["after_step"] == 0
    ]
    names = sorted({str(call.get("by") or "") for call in calls} - {""})
    return tuple(
        f"{name} was called on an optimizer that had made no step: it makes one, without gradients,"
        " and counters and moments are those of a step then; call it after the first step"
        for name in names
        if name.startswith("get_")
    )


def _loaded_by_dcp(judged: Judged, attempt: int) -> bool:
    """Whether `attempt` read a checkpoint by DCP before its first update."""
    loads = [load for process in judged.arm.attempts.get(attempt, ()) for load in process.loads]
    return any(load.get("by") == _BY_DCP and load["after_step"] == 0 for load in loads)


def _optimizer(judged: Judged, begun: Resumed, aside: str) -> Iterator[ArmFinding]:
    """The optimizers' moments and counters."""
    promise, next_step, arm = "restored: optimizer", (begun.after or 0) + 1, judged.arm.name
    evidence = _made_by(judged, begun.attempt)
    lost = {
        rank: names for rank in sorted(begun.began) if (names := _apart(begun, rank, "optimizer"))
    }
    if not lost:
        if any(state.optimizer for state in begun.began[min(begun.began)].values()):
            yield ArmFinding(
                promise,
                KEPT,
                f"attempt {begun.attempt} began with the optimizer's state of step"
                f" {begun.after}{aside}",
                arm,
            )
        return
    rank, names = next(iter(lost.items()))
    name, whose = names[0], _whose(begun, names)
    entries = (
        begun.entries.get(name, begun.entries.get(""))
        if len(begun.entries) < 2 or name in begun.entries
        else None
    )
    if entries == 0:
        said = (
            f"the optimizer's state{whose} before step {next_step} is that of no earlier step (0"
            " entries): it was not loaded"
        )
        evidence += (DCP_LEFT_OUT,) * _loaded_by_dcp(judged, begun.attempt)
    else:
        elsewhere = begun.steps_with("optimizer", name, begun.began[rank][name].optimizer)
        where = f"that of step {elsewhere[-1]}" if elsewhere else "that of no earlier step"
        said = (
            f"the optimizer's state{whose} before step {next_step} is {where}, the parameters are"
            f" those of step {begun.after}"
        )
    yield ArmFinding(promise, BROKEN, said + _on_ranks(begun, list(lost)), arm, next_step, evidence)


def _on_ranks(begun: Resumed, ranks: list[int]) -> str:
    return "" if len(ranks) == len(begun.began) else f" (rank {', '.join(map(str, ranks))})"


def _against(judged: Judged, begun: Resumed, due: Due, stable: Stable) -> Iterator[ArmFinding]:
    """Settings and generators before the first update, scaler and buffers with it, against the same
    step of the run that `due` names.
    """
    arm, number, who = judged.arm.name, (begun.after or 0) + 1, f"attempt {begun.attempt}"
    rows = _rows(judged, begun, due, 0)
    findings: list[ArmFinding] = []
    if stable("settings"):
        findings += _settings(begun, arm, rows, due)
        if not any(finding.status == BROKEN for finding in findings):
            findings = [*_lost_later(judged, begun, due)] or findings
    findings += _generators(begun, arm, rows, stable, due)
    buffers = [
        (rank, one.digests["buffers"], other.digests["buffers"])
        for rank, one, other in rows
        if one.digests.get("buffers") and other.digests.get("buffers")
    ]
    # what enters the model leaves its mark on running statistics
    if (
        buffers
        and all(
            (one.samples, one.inputs, one.entered) == (other.samples, other.inputs, other.entered)
            for _, one, other in rows
        )
        and stable("buffers")
    ):
        wrong = [rank for rank, one, other in buffers if one != other]
        said = f"after step {number}, rank {', '.join(map(str, wrong))}: {MEANING['buffers']}"
        kept = f"{who} had those of {due.whose} after its first step, step {number}"
        findings.append(
            ArmFinding("restored: buffers", BROKEN, said, arm, number)
            if wrong
            else ArmFinding("restored: buffers", KEPT, kept, arm)
        )
    scaled = [row for row in rows if row[1].scale is not None or row[2].scale is not None]
    if stable("scale") and scaled:
        wrong = [rank for rank, one, other in scaled if not same_number(one.scale, other.scale)]
        said = f"in step {number}, rank {', '.join(map(str, wrong))}: {MEANING['scale']}"
        kept = f"{who} had the scale of {due.whose} in step {number}"
        findings.append(
            ArmFinding(SCALER, BROKEN, said, arm, number)
            if wrong
            else ArmFinding(SCALER, KEPT, kept, arm)
        )
    yield from findings if due.certain else (_not_shown(finding, due) for finding in findings)


def _not_shown(finding: ArmFinding, due: Due) -> ArmFinding:
    """`finding`, of a run that had left the undisturbed one before and has no first pass of the
    step: a difference may be from then.
    """
    if finding.status != BROKEN:
        return finding
    said = (
        f"the run had left the undisturbed one at step {due.left}, and it has no first pass of step"
        f" {finding.step} to compare with"
    )
    return ArmFinding(finding.promise, NOT_CHECKED, said, finding.arm)


def _rows(judged: Judged, begun: Resumed, due: Due, place: int) -> Rows:
    """By rank, the step at `place` (from 0) of the attempt, and the one due."""
    return [
        (process.rank, process.steps[place], step)
        for process in judged.arm.attempts[begun.attempt]
        if len(process.steps) > place
        and (step := due.step_of(begun.after_on(process.rank) + place + 1, process.rank))
    ]


def _lost_later(judged: Judged, begun: Resumed, due: Due) -> Iterator[ArmFinding]:
    """Broken where settings that were right before the attempt's first update are the first thing
    on record to differ later: the optimizer brought them back, and what sets them was lost.
    """
    if not judged.differs and due.left is None:
        return
    longest = max(len(process.steps) for process in judged.arm.attempts[begun.attempt])
    for place in range(longest):
        number = (begun.after or 0) + place + 1
        names = {
            rank: [name for name in differing(one, other, not place) if name not in judged.ignored]
            for rank, one, other in _rows(judged, begun, due, place)
        }
        wrong = [rank for rank, told in names.items() if told]
        if not wrong:
            continue
        # in the first step itself, it is the step that changed them
        if place and all(names[rank][0] == "settings" for rank in wrong):
            said = (
                f"{plural(place, 'update')} after attempt {begun.attempt} began, in step {number},"
                f" rank {', '.join(map(str, wrong))}: the learning-rate schedule, or what else sets"
                " the optimizer's settings, goes on otherwise: it was not restored"
            )
            arm = judged.arm.name
            yield ArmFinding("restored: schedule and settings", BROKEN, said, arm, number)
        return


def _settings(begun: Resumed, arm: str, rows: Rows, due: Due) -> Iterator[ArmFinding]:
    promise, number = "restored: schedule and settings", (begun.after or 0) + 1
    apart = {
        rank: optimizers_apart(one.optimizers_before, other.optimizers_before, "settings")
        for rank, one, other in rows
    }
    wrong = [rank for rank, names in apart.items() if names]
    if wrong:
        _, one, other = next(row for row in rows if row[0] == wrong[0])
        of = named(apart[wrong[0]], one.optimizers_before)
        rates = (
            (f"lr {_rates(one, other)}, due was {_rates(other, one)}",)
            if one.lr != other.lr
            else ("the learning rate is right: another setting differs",)
        )

        def alike(step: Step) -> bool:
            mine, theirs = one.optimizers_before, step.optimizers_before
            return bool(theirs) and not optimizers_apart(mine, theirs, "settings")

        why = _lost(
            MEANING["settings"], "the optimizer's settings are", begun, due, wrong[0], alike
        )
        said = f"before step {number}, rank {', '.join(map(str, wrong))}{of}: {why}"
        yield ArmFinding(promise, BROKEN, said, arm, number, rates)
    elif any(
        state.settings
        for _, one, other in rows
        for name, state in one.optimizers_before.items()
        if name in other.optimizers_before
    ):
        said = f"attempt {begun.attempt} had those of {due.whose} before step {number}"
        yield ArmFinding(promise, KEPT, said, arm)


def _lost(
    meaning: str, what: str, begun: Resumed, due: Due, rank: int, alike: Callable[[Step], bool]
) -> str:
    """`meaning`, or that `what` is of another moment: `alike` tells of a step whether this part of
    the state was due before it.
    """
    first = begun.after_on(rank) + 1
    for number in (*range(first - 1, 0, -1), *range(first + 1, first + MOMENTS)):
        step = due.step_of(number, rank)
        if step is not None and alike(step):
            if number == 1:
                return f"{meaning}: as before step 1"
            return (
                f"{what} as before step {number}, and the parameters are those of step"
                f" {begun.after}: {TWO_MOMENTS}"
                f"{BY_THREAD if begun.newest_in_background is not None else ''}"
            )
    return meaning


def _rates(one: Step, other: Step) -> str:
    """The learning rates of `one`, with as many digits as tell them from those of `other`."""
    short = [[f"{rate:.6g}" for rate in step.lr] for step in (one, other)]
    return f"[{', '.join(short[0] if short[0] != short[1] else map(repr, one.lr))}]"


def _generators(
    begun: Resumed, arm: str, rows: Rows, stable: Stable, due: Due
) -> Iterator[ArmFinding]:
    """torch's, Python's and numpy's own, as far as the undisturbed runs agree in them."""
    promise, number = "restored: generators", (begun.after or 0) + 1
    compared: list[str] = []
    left = False  # one of them out
    for component in GENERATORS:
        name = DIGEST_OF[component]
        drawn = [
            (rank, one.digests_before.get(name), other.digests_before.get(name))
            for rank, one, other in rows
        ]
        drawn = [row for row in drawn if row[1] and row[2]]
        left = left or (bool(drawn) and not stable(component))
        drawn = drawn if stable(component) else []
        wrong = [rank for rank, one, other in drawn if one != other]
        compared += [_GLOBAL[component]] if drawn else []
        if wrong and any(one.samples != other.samples for _, one, other in rows):
            said = (
                f"attempt {begun.attempt} took other samples for step {number}, which may draw"
                " otherwise"
            )
            yield ArmFinding(promise, NOT_CHECKED, said, arm)
            return
        if wrong:
            state = next(one for rank, one, _ in drawn if rank == wrong[0])

            def alike(step: Step, name: str = name, state: str | None = state) -> bool:
                return step.digests_before.get(name) == state

            pair = next(row[1:] for row in rows if row[0] == wrong[0])
            lost = generator_lost(component, *pair)
            why = _lost(lost, f"{_GLOBAL[component]} is", begun, due, wrong[0], alike)
            if not pair[0].samples:
                more = f": other numbers were drawn since, or {TWO_MOMENTS}"
                why = why.replace(f": {TWO_MOMENTS}", more)
            owners = [rank for rank, _, other in drawn if state == other]
            why = f"{_GLOBAL[component]} is that of rank {owners[0]}" if owners else why
            said = f"before step {number}, rank {', '.join(map(str, wrong))}: {why}"
            yield ArmFinding(promise, BROKEN, said, arm, number)
            return
    if compared:
        which = " and ".join(compared) if left else "those"
        said = f"attempt {begun.attempt} had {which} of {due.whose} before step {number}"
        yield ArmFinding(promise, KEPT, said, arm)
