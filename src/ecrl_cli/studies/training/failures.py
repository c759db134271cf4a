"""`failures`: real training runs, each under two random failures that its configuration allows, the
second often during recovery from the first.

A trial: one run of a small model with two to four ranks, by the code path of `ecrl train` under the
zygote launcher, to its end; then the verdict of `verify` against an undisturbed run, the final
digests, the exit code, and leftovers.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from statistics import median
from typing import Any

from ecrl_cli.checkpoint.format.names import CRASH_POINTS
from ecrl_cli.config.build import build
from ecrl_cli.config.checks import check_failures
from ecrl_cli.config.fault_spec import Entry, parse
from ecrl_cli.config.plan_kinds import LISTED
from ecrl_cli.config.schema import WRITE_MODES, FailureConfig, RunConfig
from ecrl_cli.config.strategies import STRATEGIES
from ecrl_cli.config.studies import Failures
from ecrl_cli.errors import ConfigError, plural
from ecrl_cli.failures.fault_kind import Victim, fault_kind
from ecrl_cli.failures.plan import plan, planned
from ecrl_cli.failures.storage_faults import FailedCall
from ecrl_cli.studies.frame.gates import mutants_found
from ecrl_cli.studies.frame.result import upper_bound
from ecrl_cli.studies.frame.study import Skip, Study, StudyContext, Trial, TrialResults, planted_arm
from ecrl_cli.studies.mutants.recovery import BUGS
from ecrl_cli.studies.training.training_study import (
    BUGS_FOUND,
    FAILED,
    Bench,
    all_valid,
    by,
    is_valid,
    on_digits,
    phases_hit,
    phases_of,
    run_arm,
    runs,
    search,
    typed,
    who,
    whom,
)

TARGET, EVERY = 14, 4  # steps, and steps between checkpoints
# samples: an epoch of the digits has seven steps, or is longer than a run
BATCHES = {"small_cnn": 240, "vit": 24}
LATEST = 11  # latest step for a failure, with a checkpoint still to come
WORLDS = (2, 3, 4)
# a save has the same limit as a start, so a hang in one is detected before the trial times out
HANG_S, START_S = 2.0, 20.0
_POINTS = tuple(point.partition(":")[0] for point in CRASH_POINTS)
_DRAWS = 200  # draws until an available failure is found

# The design of the draw, not facts of the kinds: by kind its weight here, and the moments it is
# tried at. Kinds that cost seconds (a hang, another supervisor) are rarer.
_INSIDE = ("forward", "backward", "optimizer")
_STARTING = ("start", "rendezvous", "load")
KINDS: dict[str, tuple[int, tuple[str, ...]]] = {
    "kill": (50, ("boundary", *_INSIDE, *_INSIDE, "capture", "capture", *_STARTING, "wall")),
    "exit": (4, ("boundary",)),
    "raise": (6, ("boundary", *_INSIDE, "capture", *_STARTING)),
    "oom": (3, ("forward", "backward", "load")),
    "nan": (4, ("forward",)),
    "writer": (16, ("save",)),
    "enospc": (5, ("save",)),
    "eio": (5, ("save",)),
    "slow_disk": (2, ("save",)),
    "slow_rank": (2, ("forward",)),
    "corrupt": (6, ("boundary",)),
    "term": (5, ("boundary", "forward", "backward", "load")),
    "readonly": (3, ("boundary",)),
    "stop": (2, ("boundary", *_INSIDE, "capture", *_STARTING)),
    "supervisor": (3, ("boundary", *_INSIDE, "capture", "load")),
}
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "small_cnn": ({"name": "small_cnn", "width": 4}, {"name": "sgd", "lr": 0.05}),
    "vit": (
        {"name": "vit", "width": 8, "depth": 1, "dropout": 0.2},
        {"name": "adamw", "lr": 0.01, "weight_decay": 0.05},
    ),
}


@dataclass(frozen=True)
class FailureRunSpec:
    """The drawn part of a trial's configuration."""

    model: str
    world_size: int
    strategy: str
    mode: str
    layout: str
    capture: str = "copy"

    def keys(self, entries: tuple[str, ...] = ()) -> dict[str, Any]:
        """The groups and keys as a user types them; without `entries`, of the undisturbed run."""
        model, optimizer = MODELS[self.model]
        safe, synced = self.mode != "unsafe", self.mode == "atomic_dirsync"
        return on_digits(
            entries,
            target_steps=TARGET,
            global_batch=BATCHES[self.model],
            world_size=self.world_size,
            model=dict(model),
            optimizer=dict(optimizer),
            checkpoint={
                "strategy": self.strategy,
                "every": EVERY,
                "layout": self.layout,
                "capture": self.capture,
            },
            write_mode={
                "name": self.mode,
                "sync_files": safe,
                "atomic": safe,
                "sync_directories": synced,
            },
            supervision={
                "launcher": "zygote",
                "hang_timeout_s": HANG_S,
                "start_timeout_s": START_S,
            },
        )

    @property
    def reference(self) -> dict[str, Any]:
        """The undisturbed run: neither strategy nor write mode affects its final state."""
        return FailureRunSpec(self.model, self.world_size, "blocking", "unsafe", "group").keys()


def generate(
    rng: random.Random, strategies: tuple[str, ...], kinds: tuple[str, ...]
) -> tuple[FailureRunSpec, tuple[str, ...]]:
    """A configuration and two failures that it allows, the second at a later step or during
    recovery from the first.
    """
    setup = FailureRunSpec(
        rng.choice(("small_cnn", "small_cnn", "vit")),
        rng.choices(WORLDS, (5, 2, 2))[0],
        rng.choice(strategies),
        rng.choice(WRITE_MODES),
        rng.choices(("group", "single"), (4, 1))[0],
    )
    first = _accepted(lambda: _entry(rng, setup, kinds, rng.randint(1, LATEST)), setup, ())
    if rng.random() < 0.5 and _ends_an_attempt(first, setup):
        return setup, (
            first,
            _accepted(lambda: _while_recovering(rng, setup, parse(first)), setup, (first,)),
        )
    return setup, (
        first,
        _accepted(lambda: _entry(rng, setup, kinds, rng.randint(1, LATEST)), setup, (first,)),
    )


@cache
def undisturbed(setup: FailureRunSpec) -> RunConfig:
    """The run without failures, cached; entries are checked against it."""
    return build(setup.keys())


def possible(undisturbed: RunConfig, entries: tuple[str, ...]) -> bool:
    """Whether the failures `entries` can all be injected into the run `undisturbed`."""
    config = replace(undisturbed, failure=FailureConfig(kind="listed", entries=entries))
    try:
        check_failures(config)
        plan(config)
    except ConfigError:
        return False
    return True


def _accepted(drawn: Callable[[], Entry], setup: FailureRunSpec, before: tuple[str, ...]) -> str:
    """The first draw that is available."""
    for _ in range(_DRAWS):
        entry = drawn()
        text, together = str(entry), (*map(parse, before), entry)
        if _takes_the_last_save(
            together, STRATEGIES.of(setup.strategy).background
        ) or _damages_the_only_save(together):
            continue
        if possible(undisturbed(setup), (*before, text)):
            return text
    raise ValueError(f"no failure is available for {setup}")


def _takes_the_last_save(entries: tuple[Entry, ...], background: bool) -> bool:
    """Whether a fault takes the last possible save. Each failed save takes the first one left that
    is due; a run whose final state was not saved rightly fails. A dead background writer also loses
    its queue, possibly every save but the last, and a later fault would hit that one.
    """
    left = list(range(EVERY, TARGET, EVERY))
    for entry in sorted(entries, key=lambda entry: (-(-entry.step // EVERY), _fails_a_save(entry))):
        if background and fault_kind(entry.what).victim is Victim.WRITER:
            left.clear()
        if _fails_a_save(entry):
            taken = next((step for step in left if step >= entry.step), None)
            if taken is None:
                return True
            left.remove(taken)
    return False


def _damages_the_only_save(entries: tuple[Entry, ...]) -> bool:
    """Whether a checkpoint without an older one to fall back to would be damaged; then the fault
    does not fire.
    """
    losses = [
        entry.step
        for entry in entries
        if _fails_a_save(entry) or fault_kind(entry.what).victim is Victim.WRITER
    ]
    saves = [
        (entry.step // EVERY, needed)
        for entry in entries
        if (needed := fault_kind(entry.what).needs_checkpoints)
    ]
    return any(
        made - sum(step <= made * EVERY for step in losses) < needed for made, needed in saves
    )


def _fails_a_save(entry: Entry) -> bool:
    return isinstance(fault_kind(entry.what), FailedCall)


def _entry(rng: random.Random, setup: FailureRunSpec, kinds: tuple[str, ...], step: int) -> Entry:
    what = rng.choices(kinds, [KINDS[kind][0] for kind in kinds])[0]
    moment = rng.choice(KINDS[what][1])
    if moment in _STARTING:
        step = 0  # of the first attempt, the only one certain to exist
    if moment == "wall":
        return Entry(
            what,
            moment=moment,
            who=(rng.randrange(setup.world_size),),
            after_s=round(rng.uniform(0.05, 0.6), 3),
        )
    who = _victims(rng, setup, what, moment)
    kind = fault_kind(what)
    share = (
        round(rng.random(), 2)
        if moment in _INSIDE and kind.takes_share and not kind.seconds
        else None
    )
    seconds = {"slow_rank": 0.01, "slow_disk": 0.002}.get(what)
    point = rng.choice(_POINTS) if kind.point else ""
    return Entry(what, step, moment, share, who, seconds, point)


def _victims(
    rng: random.Random, setup: FailureRunSpec, what: str, moment: str
) -> tuple[int, ...] | str:
    victim = fault_kind(what).victim
    if victim not in (Victim.RANK, Victim.RANKS):
        return ()
    if victim is Victim.RANKS and moment not in ("start", "rendezvous"):
        drawn = rng.random()
        if drawn < 0.15:
            return "all"
        if drawn < 0.35:
            return tuple(sorted(rng.sample(range(setup.world_size), 2)))
    return (rng.randrange(setup.world_size),)


def _ends_an_attempt(entry: str, setup: FailureRunSpec) -> bool:
    """Whether the failure ends the attempt at a known step, so that the next attempt's first step
    is known.
    """
    config = undisturbed(setup)
    return any(
        each.moment != "wall" and fault_kind(each.kind).ends_attempt(each, config)
        for each in planned(parse(entry), config, LISTED)
    )


def _while_recovering(rng: random.Random, setup: FailureRunSpec, first: Entry) -> Entry:
    """A kill in the attempt after the first failure: during start, rendezvous or loading, or in the
    repeated steps.
    """
    who = (rng.randrange(setup.world_size),)
    if rng.random() < 0.75:
        return Entry("kill", max(0, first.step - 1), rng.choice(_STARTING), None, who)
    again = max(1, min(LATEST, first.step - rng.randrange(3)))
    return Entry("kill", again, rng.choice(_INSIDE), round(rng.random(), 2), who)


OUTCOMES = ("valid", "hung", "left", "exit", "invalid", "unknown", "differs", "idle")
# Phases that a recorded study must have hit, and how often; and the number of runs, with two
# failures each, of such a study.
PHASES = (
    "boundary",
    "forward",
    "backward",
    "optimizer",
    "capture",
    "save",
    "start",
    "rendezvous",
    "load",
    "wall",
)
HITS, RECORDED = 20, 500
_SETUPS = {
    "strategy": "write strategy",
    "mode": "write mode",
    "layout": "layout",
    "world_size": "ranks",
    "model": "model",
}
# Failures after which the run resumes from a checkpoint: those that expose a recovery bug.
_FATAL = ("kill",)


def _draw(context: StudyContext) -> Iterator[Trial]:
    for number in range(context.keys.trials):
        key = f"run/{number:04d}"
        setup, entries = generate(context.rng(key), context.keys.strategies, context.keys.kinds)
        if STRATEGIES.of(setup.strategy).defers:
            setup = replace(setup, capture=context.keys.capture)
        yield Trial(key, {"arm": "random", **asdict(setup), "entries": list(entries)})


def _play(bench: Bench, facts: dict[str, Any]) -> tuple[dict[str, Any], str]:
    setup = FailureRunSpec(
        *(facts[name] for name in ("model", "world_size", "strategy", "mode", "layout", "capture"))
    )
    entries = tuple(facts["entries"])
    return asdict(bench.play(setup.keys(entries), setup.reference)), typed(setup.keys(entries))


def _search(context: StudyContext, trial: Trial) -> dict[str, Any]:
    rng = context.rng(trial.key)
    return search(
        context.scratch / "planted",
        trial.facts["bug"],
        lambda: generate(rng, context.keys.strategies, _FATAL),
    )


def _told(found: Iterable[Any]) -> str:
    return ", ".join(f"{what} {n}" for what, n in Counter(found).most_common())


def _notes(results: TrialResults) -> Iterator[str]:
    tried = runs(results)
    if not tried:
        return
    injected, attempts = (
        sum(len(record.found["fired"]) for record in tried),
        sum(record.found["attempts"] for record in tried),
    )
    fired = [each for record in tried for each in record.found["fired"]]
    took = [record.seconds for record in tried]
    yield (
        f"{plural(injected, 'failure was', 'failures were')} injected in"
        f" {plural(len(tried), 'run')}, which took {plural(attempts, 'attempt')}."
    )
    yield (
        f"A run took {median(took):.1f} s in the middle and {max(took):.1f} s at most, with its"
        " verdict and what ran beside it."
    )
    yield f"by kind: {_told(kind for kind, _ in fired)}"
    yield f"by phase: {_told(moment for _, moment in fired)}"
    yield (
        "by who was planned:"
        f" {_told(who(entry) for record in tried for entry in record.facts['entries'])}"
    )
    for key, label in _SETUPS.items():
        yield f"runs by {label}: {_told(record.facts[key] for record in tried)}"
    yield f"runs by outcome: {_told(record.found['outcome'] for record in tried)}"
    if all(map(is_valid, tried)):
        yield (
            f"0 of {plural(len(tried), 'run')} under two random failures lost or changed anything:"
            f" the probability per such run is below {upper_bound(len(tried)):.2%} (one-sided exact"
            " 95%). Nothing was lost: every run reached its target in the very state of its"
            " reference."
        )


STUDY = Study(
    keys=Failures,
    description=(
        "Real training runs, each under two random failures, the second often while the first is"
        " being recovered from."
    ),
    arms=(run_arm("random", _draw, _play), planted_arm(BUGS, _search)),
    tables=(
        by("strategy", "write strategy", lambda r: [r.facts["strategy"]], OUTCOMES),
        by("mode", "write mode", lambda r: [r.facts["mode"]], OUTCOMES),
        by("ranks", "ranks", lambda r: [f"{r.facts['world_size']}, {r.facts['model']}"], OUTCOMES),
        by(
            "kind",
            "kind of failure that was injected",
            lambda r: dict.fromkeys(kind for kind, _ in r.found["fired"]),
            OUTCOMES,
        ),
        by("phase", "phase in which it was injected", phases_of, OUTCOMES),
        by("who", "what it was injected into", whom, OUTCOMES),
        FAILED,
        BUGS_FOUND,
    ),
    gates=(all_valid, phases_hit(PHASES, HITS, RECORDED), mutants_found()),
    notes=_notes,
    skips=lambda context: [
        Skip("partition", "needs a network namespace per attempt: see ecrl train failure=partition")
    ],
)
