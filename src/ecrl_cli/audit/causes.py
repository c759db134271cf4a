"""Why a step differs, in a sentence that no other line of the answer contradicts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ecrl_cli.audit.components import (
    DIGEST_OF,
    GENERATORS,
    MEANING,
    Judged,
    consumed,
    in_words,
    named,
    optimizers_apart,
)
from ecrl_cli.audit.lineage import CommittedSteps, Resumed
from ecrl_cli.audit.steps import Step
from ecrl_cli.errors import plural
from ecrl_cli.history.exactly_once import discrepancies

# pairs of samples that tell a shuffle from a position, and the share of them that chance leaves
FEWEST_PAIRS, SHUFFLED = 6, 0.25
ELSEWHERE = (
    "everything on record before it is that of the undisturbed run, so it is something that the job"
    " keeps elsewhere (a normaliser, a target or teacher network, a running average, an"
    " environment, a generator of its own) and did not restore"
)
BUCKETS = (
    "nothing was lost: DistributedDataParallel fills its buckets anew after the first step of each"
    " process, and with three ranks or more adds up gradients in another order in that step. One"
    " forward and backward pass before the first step, or find_unused_parameters=True, makes"
    " restarts exact"
)

DCP_LEFT_OUT = (
    "DCP loads what its template has: of an optimizer that has made no step the settings alone, if"
    " it is passed as it is or its parameters have gradients already. Make the template by"
    " get_optimizer_state_dict before the first backward pass, pass what was loaded to"
    " set_optimizer_state_dict"
)
TURN = "what tells whose turn it is (a counter, say) was not restored"
UNTIED = (
    "the model trained other tensors: load_state_dict(assign=True) makes tied weights two"
    " parameters (tie them again before the optimizer is made), and what was frozen or added is"
    " to be so again"
)

UNFED = (
    "other tensors entered the model: what picks its samples (a position, a random stream of its"
    " own), or what the job keeps elsewhere, between its data and its model (a normaliser, a"
    " recurrent state, a memory, an environment), was not restored"
)
BESIDE = (
    "other tensors entered the model: the position of a DataLoader that is asked beside the last"
    " one, or what the job keeps between its data and its model, was not restored"
)


def cause_of(
    judged: Judged, step: int, attempt: int, due: Step, ours: Step, names: Sequence[str]
) -> str:
    """The cause of the first difference between `ours` and `due`: the same step undisturbed, or in
    its first pass. `names`: what differs.
    """
    first = names[0]
    if first != "samples" and ours.who and due.who and ours.who != due.who:
        mine, theirs = (
            " and ".join(in_words(name, ours.optimizers_before) for name in step.who)
            for step in (ours, due)
        )
        kinds, others = ({name.partition("[")[0] for name in step.who} for step in (ours, due))
        untied = kinds == others and not set(due.who) & set(ours.optimizers_before)
        why = UNTIED if untied else TURN
        return f"{mine} stepped where {theirs} was due: {why}"
    begun = next((one for one in judged.path.resumed if one.attempt == attempt), None)
    fresh = begun is not None and step == (begun.after or 0) + 1
    if first in ("parameters", "optimizer"):
        return _of_update(judged, begun if fresh else None, due, ours, first)
    if first == "samples":
        return "it consumed other samples"  # `exactly once` says which, and why
    if first == "settings":
        whose = named(
            optimizers_apart(ours.optimizers, due.optimizers, "settings"), ours.optimizers
        )
        if fresh and _before_apart(due, ours, "settings"):
            return MEANING["settings"] + whose
        return (
            f"the learning-rate schedule, or what else sets the optimizer's settings{whose}, goes"
            " on otherwise"
        )
    if first in GENERATORS and not (fresh and _generator_apart(due, ours, first)):
        return (
            f"{first.replace('generators', 'torch generator')} was used otherwise since the restart"
        )
    if first in GENERATORS:
        return generator_lost(first, ours, due)
    if first == "loss":
        if fresh and _closure_apart(due, ours):
            return _of_update(judged, begun, due, ours, "optimizer")
        if not fresh or _state_apart(due, ours):
            return _later(step, begun, MEANING["loss"])
        more = "(the model's buffers, a" if "buffers" in names else "(a"
        return ELSEWHERE.replace("(a", more, 1)
    if first == "watched":
        return (
            "what the job watches by name was not restored:"
            f" {', '.join(_watched_apart(due, ours)) or 'watched'}"
        )
    if first == "model input":
        elsewhere = _entered_at(judged, attempt, step, ours)
        if elsewhere is not None and not ours.samples:
            return f"the tensors of step {elsewhere} entered the model: {MEANING['samples']}"
        same_loss = "loss" not in names and any(loss is not None for loss in ours.losses)
        if same_loss and "parameters" in names:  # what entered is the work of a frozen part
            return _of_update(judged, begun if fresh else None, due, ours, "parameters")
        beside = any(process.loaders_beside for process in judged.arm.processes)
        said = (BESIDE if beside else MEANING[first]) if ours.samples else UNFED
        return said if fresh else _later(step, begun, said)
    return MEANING[first]


def hooks_ran(judged: Judged) -> tuple[str, ...]:
    """The functions of torch that made a step of an optimizer that had made none, with hooks of the
    job on its step, in a restart: in words, as evidence.
    """
    names = {
        str(call.get("by"))
        for attempt, processes in judged.arm.attempts.items()
        if attempt
        for process in processes
        for call in process.calls
        if call.get("by") and call.get("hooks") and call["after_step"] == 0
    }
    return tuple(
        f"in a restart {name} made a step of an optimizer that had made none, and the hooks of that"
        " step ran: register them after the load, or restore what they change after it"
        for name in sorted(names)
    )


def generator_lost(component: str, ours: Step, due: Step) -> str:
    """Words for a generator whose state just before the first update of an attempt, `ours`, is not
    the due one: the step's own forward passes have drawn from it by then.
    """
    if ours.entered != due.entered:
        return f"{MEANING[component]}, or this step, which had other data, drew otherwise"
    # without a DataLoader what picks its samples, or acts, draws before the step
    return MEANING[component] + ", or the job drew otherwise before this step" * (not ours.samples)


def _entered_at(judged: Judged, attempt: int, step: int, ours: Step) -> int | None:
    """Another step, of an earlier attempt than `attempt`, in which the same tensors entered the
    model as in `ours`, step `step`.
    """
    path, own = judged.path, judged.arm.attempts[attempt]
    same = {id(one) for process in own for one in process.steps}
    passes = [(number, one) for number, _, _, one, _ in path.done_again] + [
        (number, one)
        for number, ranks in path.steps.items()
        if number < step
        for _, one in ranks.values()
    ]
    return max(
        (
            number
            for number, one in passes
            if number != step and one.entered == ours.entered and id(one) not in same
        ),
        default=None,
    )


def _of_update(judged: Judged, begun: Resumed | None, due: Step, ours: Step, first: str) -> str:
    """The update itself differs, though its loss does not. `begun`: the attempt, if this is its
    first step.
    """
    apart = [name for name in ("parameters", "optimizer") if _before_apart(due, ours, name)]
    if apart:
        names = optimizers_apart(ours.optimizers_before, due.optimizers_before, apart[-1])
        what = "the optimizer's state" if apart[-1] == "optimizer" else "the parameters"
        return (
            f"{what}{named(names, ours.optimizers_before)} before it was not that of the"
            " undisturbed run"
        )
    processes = judged.arm.attempts[begun.attempt] if begun is not None else []
    parallel = any(
        "DistributedDataParallel" in (process.start or {}).get("models", ())
        for process in processes
    )
    if parallel and max(process.world_size for process in processes) > 2:
        return BUCKETS
    whose = named(optimizers_apart(ours.optimizers, due.optimizers, first), ours.optimizers)
    if begun is None:
        return f"the update{whose} differs, though its loss and the state before it do not"
    return (
        f"the update{whose} differs, though the loss and the state before it are right: the"
        " gradients of other micro-batches, a clipping norm, a mask, requires_grad, noise, or what"
        " the update keeps elsewhere was not restored"
    )


def _before_apart(due: Step, ours: Step, component: str) -> bool:
    return bool(optimizers_apart(ours.optimizers_before, due.optimizers_before, component))


def _generator_apart(due: Step, ours: Step, component: str) -> bool:
    """Whether a generator's state before the update differs, or is not on record."""
    name = DIGEST_OF[component]
    one, other = due.digests_before.get(name), ours.digests_before.get(name)
    return not one or one != other


def _state_apart(due: Step, ours: Step) -> bool:
    return any(_before_apart(due, ours, name) for name in ("parameters", "optimizer", "settings"))


def _closure_apart(due: Step, ours: Step) -> bool:
    """Whether the step's first loss is right and those that its update computes itself are not: as
    LBFGS does, from parameters that it has moved.
    """
    return len(ours.losses) > 1 and len(due.losses) > 1 and ours.losses[0] == due.losses[0]


def _later(step: int, begun: Resumed | None, otherwise: str) -> str:
    if begun is None:
        return "before any restart"
    distance = step - (begun.after or 0)
    return f"{plural(distance, 'step')} after attempt {begun.attempt} began: {otherwise}"


def _watched_apart(due: Step, ours: Step) -> list[str]:
    """The names of what the job watches that differ."""
    one, other = (
        dict(
            part.rpartition(" ")[::2]
            for part in step.digests.get("watched", "").split(", ")
            if part
        )
        for step in (due, ours)
    )
    return sorted(name for name in one.keys() & other.keys() if one[name] != other[name])


def is_order(ours: CommittedSteps, due: CommittedSteps, step: int, rank: int, until: int) -> bool:
    """Whether the samples of `rank` from `step` to `until` are the due ones in another order."""
    steps = range(step, until + 1)
    return not discrepancies(consumed(ours, steps, rank), consumed(due, steps, rank))


def is_shuffled(
    ours: CommittedSteps, due: CommittedSteps, step: int, rank: int, until: int, since: int = 0
) -> bool | None:
    """Whether the samples of `rank` from `step` to `until` are those of another shuffle: hardly two
    that come one after the other ever do so in the undisturbed run. From another position in the
    same order most would. None where they are too few to tell. `since`: if the order of the epoch
    that begins with that step, and ends with `until`, is meant.
    """

    def pairs(
        path: CommittedSteps, first: int, last: int, attempt: int | None = None
    ) -> list[tuple[str, str]]:
        consumed = [
            sample
            for number in sorted(path.steps)
            if first <= number <= last and rank in path.steps[number]
            if attempt in (None, path.steps[number][rank][0])
            for sample in path.steps[number][rank][1].samples
        ]
        return list(itertools.pairwise(consumed))

    attempt, _ = ours.steps[step][rank]  # a later one may have the due order
    here, known = (
        pairs(ours, step, until, attempt),
        {*pairs(due, since, until if since else due.last)},
    )
    if len(here) < FEWEST_PAIRS:
        return None
    return sum(pair in known for pair in here) < len(here) * SHUFFLED
