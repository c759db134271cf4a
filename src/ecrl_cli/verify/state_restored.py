"""Promise state-restored: each rank began with the state that was saved or handed over for it; no
other run is needed.

The content of a checkpoint or snapshot is in supervisor.json (the supervisor read it before the
launch) and in the checkpoint's manifest while it exists; the restored state of a rank is in
`restored_rankR.json`. With another world size the components shared by all ranks must still be
equal; a rank that did not exist when the state was saved begins with its own generators.
"""

from __future__ import annotations

from ecrl_cli.checkpoint.format.canonical_json import is_digest
from ecrl_cli.checkpoint.format.train_document import due_on_rank, saved_state, tensor_digests
from ecrl_cli.config.recoveries import recovery_of
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.errors import plural, shown
from ecrl_cli.history.lineage import committed_as, lines_of_step
from ecrl_cli.records.events import Attempt
from ecrl_cli.records.state_digests import RANK_COMPONENTS, recorded_by_rank
from ecrl_cli.records.survivor_records import SNAPSHOT, SURVIVORS
from ecrl_cli.verify.saved_states import component_names
from ecrl_cli.verify.state_consistent import as_components, differing_components
from ecrl_cli.verify.state_values import equal_buffers
from ecrl_cli.verify.verdict import Finding, FindingBuilder
from ecrl_cli.verify.verification_input import Case

PROMISE = "state-restored"
# components common to all ranks that resume after the same step
_SHARED = ("parameters", "buffers", "optimizer", "train")


def state_restored(case: Case) -> Finding:
    """Not checked if nothing was restored, or the run's version did not record restored states."""
    notes, compared = FindingBuilder(PROMISE), 0
    for a in case.attempts:
        _check_resumed_state(case, a, notes)
        if a.resumed_from is None and not a.memory:
            _check_ordered(case, a, notes)
            if case.run.logs(a.attempt).restored:
                notes.broken(
                    f"attempt {a.attempt} began with nothing, and ranks of it say what they"
                    " restored"
                )
            continue
        _check_source(case, a, notes)
        _check_present(case, a, notes)
        compared += _check_ranks(case, a, notes)
    if not compared:
        return notes.finding(
            "no rank restored a state, or none recorded what it held", checked=False
        )
    return notes.finding(
        f"{compared} times a rank held what it was to resume from, before its first step"
    )


def _check_source(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    """The state in supervisor.json is the checkpoint's, if it still exists, and the one that the
    ranks logged after its step.
    """
    if not a.resumed_state:
        return
    for path, stored in _on_disk(case, a).items():
        if names := [name for name in a.resumed_state if stored.get(name) != a.resumed_state[name]]:
            notes.broken(
                f"attempt {a.attempt} resumed from other {', '.join(names)} by supervisor.json than"
                f" {path} holds"
            )
    parent = _parent(case, a)
    for rank, logged in _logged(case, parent, a.resumed_from_step).items():
        # they are rank 0's
        due = {
            name: value
            for name, value in due_on_rank(a.resumed_state, rank).items()
            if name != "buffers" or rank == 0
        }
        if names := differing_components(due, logged):
            step = a.resumed_from_step
            notes.broken(
                f"attempt {a.attempt} resumed from other {', '.join(names)} than rank {rank} logged"
                f" after step {step} of attempt {parent}"
            )


def _check_ordered(case: Case, a: Attempt, notes: FindingBuilder) -> bool:
    """Whether the ranks were to record what they restored; since a version that records the state
    of every rank they always are.
    """
    order = case.run.logs(a.attempt).order
    if order and not order.restored_digests and recorded_by_rank(case.run.stored.config):
        notes.broken(
            f"launch.json of attempt {a.attempt} asks the ranks for no digest of what they"
            " restored, which every launch does"
        )
    return order is not None and order.restored_digests


def _check_resumed_state(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    """supervisor.json has a digest of each component of the state resumed from, and of no other;
    none where there was nothing to read.
    """
    if not a.resumed_state or not recorded_by_rank(case.run.stored.config):
        return  # that they are missing is found below
    if a.resumed_from is None and a.memory != SNAPSHOT:
        notes.broken(
            f"attempt {a.attempt} resumed from no checkpoint and no snapshot, and supervisor.json"
            " says what that held"
        )
        return
    parent = case.attempt(number) if (number := _parent(case, a)) is not None else None
    if parent is None:
        return
    if absent := sorted(component_names(case, parent.world_size) - a.resumed_state.keys()):
        saved = plural(parent.world_size, "rank")
        notes.broken(
            f"attempt {a.attempt} resumed from what {saved} saved, and supervisor.json lacks the"
            f" digest of {absent[0]}"
        )
    for name, sha256 in a.resumed_state.items():
        if not is_digest(sha256):
            notes.broken(
                f"attempt {a.attempt} resumed from {shown(name)} with the digest {shown(sha256)} by"
                " supervisor.json"
            )
            return


def _on_disk(case: Case, a: Attempt) -> dict[str, dict[str, str]]:
    """By path, the state in the checkpoint that `a` resumed from; empty if it is gone or cannot be
    read.
    """
    sha256 = a.resumed_from.commit_sha256 if a.resumed_from else None
    found = (
        c
        for c in case.disk
        if sha256 and c.report.ok and c.report.manifest and c.report.commit_sha256 == sha256
    )
    return {
        c.path: saved_state(tensor_digests(c.report.manifest), c.train)
        for c in found
        if c.report.manifest
    }


def _parent(case: Case, a: Attempt) -> int | None:
    """The attempt whose state `a` started from."""
    if a.resumed_from is None:
        return a.continues
    committed = committed_as(case.run, a.resumed_from.commit_sha256, before=a.attempt)
    return committed.attempt if committed else None


def _logged(case: Case, attempt: int | None, step: int) -> dict[int, dict[str, str]]:
    """By rank, the digests that it logged after `step` of `attempt`; only ranks that did."""
    ranks = case.run.logs(attempt).ranks if attempt is not None else {}
    return {
        rank: line.components
        for rank, lines in sorted(ranks.items())
        for line in lines_of_step(lines, step)
        if line.components
    }


def _check_present(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    """Every rank that did a step had recorded its restored state, if its launch.json asked for it;
    and supervisor.json what that state was to be, which of another checkpointer's is known only by
    what rank 0 logged.
    """
    logs = case.run.logs(a.attempt)
    if not _check_ordered(case, a, notes):
        return
    absent = [
        rank
        for rank, lines in sorted(logs.ranks.items())
        if lines.events and rank not in logs.restored
    ]
    if absent:
        notes.missing(
            f"attempt {a.attempt}: ranks {absent} did steps, and nothing says what they had"
            " restored"
        )
    known = not strategy_of(case.run.stored.config).checkpointer or 0 in _logged(
        case, _parent(case, a), a.resumed_from_step
    )
    if a.memory != SURVIVORS and not a.resumed_state and logs.restored and known:
        notes.missing(
            f"attempt {a.attempt}: supervisor.json does not say what the state resumed from holds"
        )


def _check_ranks(case: Case, a: Attempt, notes: FindingBuilder) -> int:
    """Check the restored states; returns how many ranks were compared with something."""
    restored, compared = case.run.logs(a.attempt).restored, 0
    saved = a.resumed_state or next(iter(_on_disk(case, a).values()), {})
    for rank, held in sorted(restored.items()):
        place = (held.attempt, held.global_step, held.state.rank)
        if place != (a.attempt, a.resumed_from_step, rank) or rank >= a.world_size:
            notes.broken(
                f"restored_rank{rank}.json of attempt {a.attempt} is of attempt {place[0]}, step"
                f" {shown(place[1])}, rank {shown(place[2])}"
            )
            continue
        expected, carried = (
            (_of_survivors(case, a, rank), _check_carried(case, a, rank, notes))
            if a.memory == SURVIVORS
            else (due_on_rank(saved, rank), False)
        )
        compared += bool(expected) or carried
        if names := differing_components(expected, as_components(held.state)):
            notes.broken(
                f"attempt {a.attempt} rank {rank} began with other {', '.join(names)} than"
                f" {_source(a)} held"
            )
        for name, sha256 in as_components(held.state).items():
            if not is_digest(sha256):
                notes.broken(
                    f"restored_rank{rank}.json of attempt {a.attempt} has the digest"
                    f" {shown(sha256)} of {name}, which is none"
                )
        first = restored[min(restored)].state
        # Buffers are rank 0's on every rank, but survivors keep their own where nothing makes them
        # equal.
        alike = [name for name in _SHARED if name != "buffers" or equal_buffers(case.run)]
        if names := [name for name in alike if getattr(held.state, name) != getattr(first, name)]:
            notes.broken(
                f"attempt {a.attempt} rank {rank} began with other {', '.join(names)} than rank"
                f" {first.rank}"
            )
        if a.snapshot_state and held.state_digest != a.snapshot_state:
            notes.broken(
                f"attempt {a.attempt} rank {rank} began with another state than {_source(a)} held"
            )
    return compared


def _of_survivors(case: Case, a: Attempt, rank: int) -> dict[str, str]:
    """The state that `rank` must hold when survivors continue: its own; for a joined rank, the
    state of the lowest survivor.
    """
    origin = a.origins[rank] if rank < len(a.origins) else -1
    own = _logged(case, a.continues, a.resumed_from_step).get(origin, {})
    if rank in a.joined:
        giver = next((each for each in range(a.world_size) if each not in a.joined), None)
        given = case.run.logs(a.attempt).restored.get(giver) if giver is not None else None
        shared = {name: getattr(given.state, name) for name in _SHARED} if given else {}
        # a spare that replaces a dead rank takes over its generators
        return shared | ({"rng": own["rng"]} if "rng" in own else {})
    if recovery_of(case.run.stored.config).drops_step:
        own = own or _before_dropped(case, a, origin)
    return {name: own[name] for name in RANK_COMPONENTS if name in own}


def _before_dropped(case: Case, a: Attempt, origin: int) -> dict[str, str]:
    """The state of rank `origin` of the attempt before ahead of the step that it dropped last, but
    for the place in the data and the learning rate. Empty where no digest tells.
    """
    last = a.resumed_from_step - 1
    held = _logged(case, a.continues, last).get(origin, {})
    began = case.run.logs(a.continues).restored.get(origin) if a.continues is not None else None
    if not held and began and began.global_step == last:
        held = as_components(began.state)
    return {name: value for name, value in held.items() if name not in ("optimizer", "train")}


def _check_carried(case: Case, a: Attempt, rank: int, notes: FindingBuilder) -> bool:
    """A survivor begins with the state that it left the previous attempt with; returns whether both
    are on record.
    """
    origin = a.origins[rank] if rank < len(a.origins) and rank not in a.joined else -1
    logs = case.run.logs(a.continues) if a.continues is not None else None
    report = logs.survivor_reports.get(origin) if logs else None
    told = {each.state_digest for each in report.events if each.state_digest} if report else set()
    if told - {case.run.logs(a.attempt).restored[rank].state_digest}:
        notes.broken(
            f"attempt {a.attempt} rank {rank} began with another state than it left attempt"
            f" {a.continues} with"
        )
    return bool(told)


def _source(a: Attempt) -> str:
    if a.resumed_from:
        return a.resumed_from.path
    return (
        f"the ranks that outlived attempt {a.continues}"
        if a.memory == SURVIVORS
        else f"the snapshot of attempt {a.continues}"
    )
