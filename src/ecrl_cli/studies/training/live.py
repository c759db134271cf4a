"""`live-recovery`: real training runs in which some ranks die and others survive, under every
recovery.

First a fixed matrix (victims in backward x two to four processes, several at once, one after the
other, during a recovery), then random runs: a recovery, ranks and spares, and one to four failures,
in the form a user would type. A trial: one run by the code path of `ecrl train` under the zygote
launcher, to its end; then the verdict of `verify`, and the checks of `live_invariants`: survivors
bit for bit equal, no unnecessary restart, exact lost-sample records, and the right final state.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from ecrl_cli.config.build import build
from ecrl_cli.config.fault_spec import Entry, parse
from ecrl_cli.config.recoveries import RECOVERIES, recovery_of
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.studies import LiveRecovery
from ecrl_cli.failures.fault_kind import Victim, fault_kind
from ecrl_cli.failures.rank_faults import Kill
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import read_run_config
from ecrl_cli.records.survivor_records import SURVIVORS
from ecrl_cli.studies.frame.gates import mutants_found
from ecrl_cli.studies.frame.result import upper_bound
from ecrl_cli.studies.frame.study import Study, StudyContext, Trial, TrialResults, planted_arm
from ecrl_cli.studies.frame.tables import sums
from ecrl_cli.studies.mutants.recovery import LIVE_BUGS, REPLICA_BUGS
from ecrl_cli.studies.training.failures import possible
from ecrl_cli.studies.training.live_invariants import LOOKS, RunHistory, read_history, sockets
from ecrl_cli.studies.training.training_study import (
    BUGS_FOUND,
    FAILED,
    Bench,
    TrainedRun,
    all_valid,
    by,
    ending,
    is_valid,
    on_digits,
    phases_hit,
    phases_of,
    run_arm,
    runs,
    typed,
    whom,
)

# steps, steps between checkpoints, samples: shared by 1 to 4 ranks; an epoch of the digits has 12
# steps
TARGET, EVERY, BATCH = 16, 4, 144
REPLICAS = 9  # under recoveries that need them: no power of two, and no multiple of 2 or 4 ranks
WIDTH = 28  # of the model: its gradients fill two buckets
LATEST = 13  # latest step for a failure, with steps left after it
WORLDS = (2, 3, 4)
HANG_S = 20.0  # longer than a rank waits for a reported death to explain a failing exchange
_DRAWS = 200

_INSIDE = ("forward", "backward", "optimizer")
_RECOVERING = ("load", "rendezvous")  # moments of the attempt that recovers
# The design of the draw, not facts of the kinds: by kind its weight here, and the moments it is
# tried at.
KINDS: dict[str, tuple[int, tuple[str, ...]]] = {
    "kill": (
        10,
        ("boundary", "forward", "backward", "backward", "backward", "optimizer", "capture"),
    ),
    "backward": (3, ("backward",)),
    "exit": (2, ("boundary", *_INSIDE, "capture")),
    "raise": (4, ("boundary", *_INSIDE, "capture")),
    "writer": (1, ("save",)),
}


@dataclass(frozen=True)
class LiveRunSpec:
    """The drawn part of a trial's configuration."""

    recovery: str
    world_size: int
    spares: int
    strategy: str
    dropout: float

    @property
    def replicas(self) -> int:
        return REPLICAS if RECOVERIES.of(self.recovery).needs_replicas else 0

    def keys(self, entries: tuple[str, ...] = ()) -> dict[str, Any]:
        """The groups and keys as a user types them."""
        supervision = {"launcher": "zygote", "spares": self.spares, "hang_timeout_s": HANG_S}
        return self._keys(
            entries, self.strategy, recovery={"name": self.recovery}, supervision=supervision
        )

    @property
    def reference(self) -> dict[str, Any]:
        """The undisturbed run, with stock DDP or with the same replicas."""
        return self._keys((), "none", supervision={"launcher": "zygote"})

    def _keys(self, entries: tuple[str, ...], strategy: str, **more: Any) -> dict[str, Any]:
        return on_digits(
            entries,
            target_steps=TARGET,
            global_batch=BATCH,
            world_size=self.world_size,
            state_digests=True,
            model={"name": "small_cnn", "width": WIDTH, "dropout": self.dropout},
            optimizer={"name": "sgd", "lr": 0.05},
            checkpoint={"strategy": strategy, "every": EVERY},
            elastic={"replicas": self.replicas},
            **more,
        )


def matrix(
    recoveries: tuple[str, ...], strategies: tuple[str, ...]
) -> Iterator[tuple[str, LiveRunSpec, tuple[str, ...]]]:
    """(name, run, failures): every victim in backward x number of ranks for each recovery, then
    failures during recovery itself.
    """
    for recovery in recoveries:
        base = LiveRunSpec(
            recovery, 3, 0 if RECOVERIES.of(recovery).shrinks else 1, strategies[-1], 0.2
        )
        for world_size in WORLDS:
            spec = replace(base, world_size=world_size)
            yield f"{recovery}/{world_size}/leader", spec, ("kill@5.backward/0.1:0",)
            yield (
                f"{recovery}/{world_size}/another",
                spec,
                (f"kill@6.backward/0.6:{world_size - 1}",),
            )
        more = replace(base, world_size=4, spares=2)
        yield f"{recovery}/two_at_once", more, ("kill@5.backward/0.4:0+2",)
        yield (
            f"{recovery}/two_in_one_step",
            more,
            ("kill@7.backward/0.2:3", "kill@7.backward/0.9:0"),
        )
        yield (
            f"{recovery}/while_recovering",
            replace(base, spares=2),
            ("kill@6.backward/0.5:1", "kill@5.load:0"),
        )
        yield (
            f"{recovery}/three_in_a_row",
            more,
            ("kill@3.backward/0.3:0", "raise@6.forward/0.5:1", "kill@9.backward/0.8:0"),
        )
        yield f"{recovery}/all", base, ("kill@6.backward/0.5:all", "kill@9.backward/0.5:1")


def generate(
    rng: random.Random, recoveries: tuple[str, ...], strategies: tuple[str, ...]
) -> tuple[LiveRunSpec, tuple[str, ...]]:
    """A run and one to four failures of existing ranks."""
    recovery = rng.choice(recoveries)
    spares = rng.choice((0, 0, 1, 2)) if RECOVERIES.of(recovery).shrinks else rng.choice((1, 1, 2))
    spec = LiveRunSpec(
        recovery, rng.choice(WORLDS), spares, rng.choice(strategies), rng.choice((0.0, 0.2))
    )
    wanted, entries, step = rng.choices((1, 2, 3, 4), (4, 4, 2, 1))[0], tuple[str, ...](), 0
    for _ in range(_DRAWS):
        there = present(spec, entries)
        step = max((parse(entry).step for entry in entries), default=0)
        if len(entries) == wanted or step + 2 > LATEST:
            break
        found = _next(rng, spec, entries, there, step, last=len(entries) + 1 == wanted)
        if possible(undisturbed(spec), (*entries, *found)):
            entries = (*entries, *found)
    if not entries:
        raise ValueError(f"no failure is available for {spec}")
    return spec, entries


@cache
def undisturbed(spec: LiveRunSpec) -> RunConfig:
    """The run without failures, cached; entries are checked against it."""
    return build(spec.keys())


def present(spec: LiveRunSpec, entries: tuple[str, ...]) -> int:
    """Minimum number of ranks after `entries`: dead ranks are replaced at most as often as there
    were spares.
    """
    size, spares = spec.world_size, spec.spares
    if not RECOVERIES.of(spec.recovery).shrinks:
        return size
    for entry in map(parse, entries):
        gone = size if entry.who == "all" else max(1, len(entry.who))
        filled = min(gone, spares)
        spares -= filled
        size = size - gone + filled if gone < size + filled else spec.world_size
    return max(1, size)


def _next(
    rng: random.Random,
    spec: LiveRunSpec,
    entries: tuple[str, ...],
    there: int,
    step: int,
    last: bool,
) -> tuple[str, ...]:
    """One failure at least two steps after the earlier ones; or one during recovery from the last
    of these; or two in one step.
    """
    if not entries and rng.random() < 0.05:
        return (
            str(
                Entry("kill", 0, rng.choice(("start", *_RECOVERING)), None, (rng.randrange(there),))
            ),
        )
    before = parse(entries[-1]) if entries and step > 1 and rng.random() < 0.35 else None
    if (
        before
        and not before.moment.startswith(_RECOVERING)
        and fault_kind(before.what).victim.is_rank
    ):
        return (
            str(Entry("kill", step - 1, rng.choice(_RECOVERING), None, (rng.randrange(there),))),
        )
    begin = rng.randint(step + 2, min(LATEST, step + 6))
    if there > 1 and rng.random() < 0.12:
        first, second = rng.sample(range(there), 2)
        return tuple(
            str(Entry("kill", begin, "backward", round(rng.random(), 2), (who,)))
            for who in (first, second)
        )
    return (str(_alone(rng, spec, there, begin, last)),)


def _alone(rng: random.Random, spec: LiveRunSpec, there: int, step: int, last: bool) -> Entry:
    what = rng.choices(tuple(KINDS), [weight for weight, _ in KINDS.values()])[0]
    moment = rng.choice(KINDS[what][1])
    kind = fault_kind(what)
    if kind.victim is Victim.WRITER:
        return Entry(
            what,
            -(-step // EVERY) * EVERY,
            "save",
            None,
            (),
            None,
            rng.choice(("before_rename", "after_rename")),
        )
    who: tuple[int, ...] | str = (rng.randrange(there),) if kind.takes_rank else ()
    if moment == "capture":  # the kill may move to the next save due, when other ranks are gone
        step, who = -(-step // EVERY) * EVERY, who if last or not kind.takes_rank else (0,)
    elif type(kind) is Kill and rng.random() < 0.2:
        who = (
            "all"
            if rng.random() < 0.25 or there < 2
            else tuple(sorted(rng.sample(range(there), 2)))
        )
    share = round(rng.random(), 2) if moment in _INSIDE else None
    return Entry(what, step, "" if kind.moments == (moment,) else moment, share, who)


def facts(spec: LiveRunSpec, entries: tuple[str, ...]) -> dict[str, Any]:
    return {**asdict(spec), "entries": list(entries)}


def of_facts(found: dict[str, Any]) -> tuple[LiveRunSpec, tuple[str, ...]]:
    """The inverse of `facts`."""
    return LiveRunSpec(*(found[name] for name in LiveRunSpec.__dataclass_fields__)), tuple(
        found["entries"]
    )


OUTCOMES = tuple("valid hung left exit invalid unknown apart restarted ledger differs idle".split())
# Phases that a recorded study must have hit, and how often; and the number of runs of such a study.
PHASES = ("boundary", "forward", "backward", "optimizer", "capture", "load", "rendezvous")
HITS, RECORDED = 5, 200
TOLD = ("valid", "idle", "invalid", "unknown")  # outcomes of a run with complete records
# possible outcomes of a recovery bug
SHOWN = ("invalid", "apart", "restarted", "ledger", "differs", "exit")
# The recovery under which each bug shows.
LOSSY, ROLLBACK, REDISTRIBUTE, SKIP = (
    ("lossy_forward",),
    ("immediate_rollback",),
    ("redistribute",),
    ("skip",),
)
PLANTED = LIVE_BUGS | {
    bug: REPLICA_BUGS[bug] for bug in ("sum in rank order", "streams by position in the rank")
}
SHOWS = {
    "buffers left where the given-up step had them": ROLLBACK,
    "newcomers with generators of their own": ROLLBACK,
    "a given-up step with replicas leaves its buffers": REDISTRIBUTE,
    "sum in rank order": REDISTRIBUTE,
    "streams by position in the rank": REDISTRIBUTE,
    "a dropped step that momentum makes after all": SKIP,
    "the cursor stays at the dropped mini-batch": SKIP,
}


def _matrix(context: StudyContext) -> Iterator[Trial]:
    for name, spec, entries in matrix(context.keys.recoveries, context.keys.strategies):
        yield Trial(f"matrix/{name}", {"arm": "matrix", **facts(spec, entries)})


def _draw(context: StudyContext) -> Iterator[Trial]:
    for number in range(context.keys.trials):
        key = f"run/{number:04d}"
        spec, entries = generate(context.rng(key), context.keys.recoveries, context.keys.strategies)
        yield Trial(key, {"arm": "random", **facts(spec, entries)})


def _play(bench: Bench, facts: dict[str, Any]) -> tuple[dict[str, Any], str]:
    spec, entries = of_facts(facts)
    return play(bench, spec, entries), typed(spec.keys(entries))


def _search(context: StudyContext, trial: Trial) -> dict[str, Any]:
    """Run the matrix with the bug until one run fails."""
    bug = trial.facts["bug"]
    bench, tried = Bench(context.scratch / "planted", bug), 0
    try:
        for _, spec, entries in matrix(SHOWS.get(bug, LOSSY), context.keys.strategies):
            found, tried = play(bench, spec, entries), tried + 1
            if found["outcome"] in SHOWN:
                return {
                    "found": True,
                    "runs": tried,
                    "by": f"{found['outcome']}: {found['why']}",
                    "beside": found["seen"],
                }
    finally:
        bench.close()
    return {"found": False, "runs": tried, "by": "", "beside": ""}


def play(bench: Bench, spec: LiveRunSpec, entries: tuple[str, ...]) -> dict[str, Any]:
    """The run's outcome; `seen`: findings beside the verdict; `went_on`, `joined`, `redone`,
    `lost`: attempts continued by others in memory, spares that joined, steps finished without the
    dead ranks or dropped, and lost samples.
    """
    beside: dict[str, Any] = {"seen": "", "went_on": 0, "joined": 0, "redone": 0, "lost": 0}

    def look(run: TrainedRun, layout: RunLayout, reference: RunLayout) -> None:
        if run.outcome not in TOLD:
            return
        history = read_history(layout, read_run_config(layout).config)
        beside.update(_counted(history))
        outcome, why = _asked(history, run, layout, reference)
        beside["seen"] = f"{outcome}: {why}" if why else ""
        if why and run.outcome in ("valid", "idle"):
            run.outcome, run.why = outcome, why

    found = asdict(bench.play(spec.keys(entries), spec.reference, look=look))
    return found | beside


def _asked(
    history: RunHistory, run: TrainedRun, layout: RunLayout, reference: RunLayout
) -> tuple[str, str]:
    """(outcome, why) of the first broken promise."""
    if left := sockets(layout):
        return "left", left[0]
    for outcome, check in LOOKS.items():
        if why := check(history):
            return outcome, why
    return "differs", _elsewhere(history, run.digests, reference)


def _elsewhere(history: RunHistory, end: str, reference: RunLayout) -> str:
    """A wrong final state (`end`: its digests): without losses it must equal the reference's, else
    the oracle's prediction, if there is one.
    """
    from ecrl_cli.studies.training.live_oracle import can_tell, foretold  # imports torch

    if not recovery_of(history.config).loses_samples:
        due = {ending(reference)}
    elif can_tell(history):
        end, due = _state(end), foretold(history)
    elif _nothing_changed(history):
        end, due = _state(end), {_state(ending(reference))}
    else:
        return ""
    return (
        ""
        if end in due
        else f"ends in {end[:60]}, must in {' or '.join(sorted(each[:60] for each in due))}"
    )


def _state(digests: str) -> str:
    """The digests without that of the generators."""
    return digests.rpartition(" ")[0]


def _nothing_changed(history: RunHistory) -> bool:
    """Nothing lost, the number of ranks constant, and no random numbers drawn that could differ."""
    sizes = {logs.attempt.world_size for logs in history.attempts}
    return not (
        len(sizes) > 1
        or history.config.model.dropout
        or any(any(logs.lost_samples.values()) for logs in history.attempts)
    )


def _counted(history: RunHistory) -> dict[str, int]:
    steps = {
        (logs.attempt.attempt, each.global_step)
        for logs in history.attempts
        for each in logs.redone
    }
    recorded = [next(iter(logs.lost_samples.values()), ()) for logs in history.attempts]
    lost = {
        (line.global_step, sample)
        for lines in recorded
        for line in lines
        for sample in line.samples
    }
    return {
        "went_on": sum(logs.attempt.memory == SURVIVORS for logs in history.attempts),
        "joined": sum(len(logs.attempt.joined) for logs in history.attempts),
        "redone": len(steps),
        "lost": len(lost),
    }


def _alive(results: TrialResults) -> Iterator[Gate]:
    """Under each recovery some processes survived others; otherwise every recovery was a
    restart.
    """
    outlived = {
        record.facts["recovery"]
        for record in runs(results)
        if record.found["joined"] + record.found["went_on"]
    }
    missing = [name for name in results.keys.recoveries if name not in outlived]
    message = (
        "survivors went on with what was in their memory"
        f" {sum(record.found['went_on'] for record in runs(results))} times"
    )
    yield Gate(
        "alive",
        not missing,
        message + (f"; never outlived others with {', '.join(missing)}" if missing else ""),
    )


def _notes(results: TrialResults) -> Iterator[str]:
    tried = runs(results)
    if not tried:
        return
    total = sums(tried, "attempts", "went_on", "joined", "redone", "lost")
    injected = sum(len(record.found["fired"]) for record in tried)
    yield (
        f"{injected} failures were injected in {len(tried)} runs, which took {total['attempts']}"
        f" attempts; into {total['went_on']} of these survivors took their memory along, spares"
        f" took {total['joined']} places, {total['redone']} steps were finished without the dead or"
        f" dropped, {total['lost']} samples are on record as lost."
    )
    if all(map(is_valid, tried)):
        yield (
            f"0 of {len(tried)} runs had survivors that differed, restarted what could go on, kept"
            " a false lost-samples record or ended elsewhere than they must: the probability per"
            f" such run is below {upper_bound(len(tried)):.2%} (one-sided exact 95%)."
        )


STUDY = Study(
    keys=LiveRecovery,
    description=(
        "Real training runs whose ranks die while others live on: a fixed matrix, then runs drawn"
        " at random."
    ),
    arms=(
        run_arm("matrix", _matrix, _play),
        run_arm("random", _draw, _play),
        planted_arm(PLANTED, _search),
    ),
    tables=(
        by("recovery", "recovery", lambda r: [r.facts["recovery"]], OUTCOMES),
        by("ranks", "ranks", lambda r: [str(r.facts["world_size"])], OUTCOMES),
        by("who", "what it was injected into", whom, OUTCOMES),
        by("phase", "phase in which it was injected", phases_of, OUTCOMES),
        by("deaths", "failures in the run", lambda r: [str(len(r.facts["entries"]))], OUTCOMES),
        by("spares", "spares", lambda r: [str(r.facts["spares"])], OUTCOMES),
        by("strategy", "write strategy", lambda r: [r.facts["strategy"]], OUTCOMES),
        FAILED,
        BUGS_FOUND,
    ),
    gates=(all_valid, _alive, phases_hit(PHASES, HITS, RECORDED), mutants_found()),
    notes=_notes,
)
