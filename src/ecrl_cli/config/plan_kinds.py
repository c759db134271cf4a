"""How the failures of a run are planned: not at all, of one kind at given steps, as a list, or
drawn at random. One object each, which `failure.kind` chooses; it says which keys of the group it
reads, what it refuses, and which failures it plans.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from ecrl_cli.config.elastic import ranks_at, sizes
from ecrl_cli.config.failure_kinds import BUILTIN
from ecrl_cli.config.fault_spec import FAILURES, KEY, STARTING, Entry, parse, refused
from ecrl_cli.config.limits import MOST_FAILURES
from ecrl_cli.config.registry import unknown
from ecrl_cli.config.schema import FailureConfig, RunConfig
from ecrl_cli.errors import ConfigError, plural

if TYPE_CHECKING:  # only a plan that is drawn needs it
    import numpy as np

# "mtbf": a stream of the seed that nothing else uses (epochs and ranks are small numbers)
STREAM = 0x6D746266


class PlanKind:
    """`keys`: the keys of the group that it alone reads. `plans_none`: it plans no failure.
    `sets_times`: it has no use for failure.steps. `draws`: times and ranks are drawn from the seed,
    none is typed.
    """

    keys: frozenset[str] = frozenset()
    plans_none = False
    sets_times = False
    draws = False

    def takes_rank(self, failure: FailureConfig) -> bool:
        """Whether it reads failure.rank."""
        del failure
        return False

    def unused_keys(self, failure: FailureConfig) -> set[str]:
        """The keys of the group that it does not read, without those that every plan keeps."""
        unused = {
            key
            for plan in (NOTHING, AT_STEPS, LISTED, RANDOM_KILLS)
            if plan is not self
            for key in plan.keys
        }
        return (
            unused
            | ({"steps"} if self.sets_times else set())
            | (set() if self.takes_rank(failure) else {"rank"})
        )

    def entries(self, config: RunConfig) -> tuple[Entry, ...]:
        """The failures as typed or drawn, in order. ConfigError if one cannot be parsed."""
        del config
        return ()

    def check(self, config: RunConfig) -> None:
        """ConfigError for the first rule that the keys of the group break."""
        raise NotImplementedError

    def refusal(self, entry: Entry, key: str, reason: str, remedy: str) -> ConfigError:
        """The error of `entry`, which cannot happen in this run because of what failure.`key`
        says.
        """
        del entry
        return ConfigError(f"failure.{key}", reason, remedy)


class Nothing(PlanKind):
    """failure=none."""

    plans_none = True

    def check(self, config: RunConfig) -> None:
        failure = config.failure
        _refuse_mean(failure, "add failure=mtbf")
        if failure.steps:
            raise ConfigError(
                "failure.steps",
                f"{list(failure.steps)} planned, but failure.kind is none",
                "add failure=kill or failure=exit",
            )
        _refuse_entries(failure)


class AtSteps(PlanKind):
    """failure=KIND: the same failure at each of `failure.steps`."""

    def takes_rank(self, failure: FailureConfig) -> bool:
        return bool(FAILURES.load(failure.kind)().takes_rank)

    def entries(self, config: RunConfig) -> tuple[Entry, ...]:
        failure = config.failure
        share = None if failure.share == FailureConfig().share else failure.share
        who: tuple[int, ...] | str = (failure.rank,) if failure.who == "rank" else failure.who
        return tuple(
            Entry(
                failure.kind,
                step,
                failure.moment,
                share,
                who,
                failure.seconds or None,
                failure.point,
            )
            for step in failure.steps
        )

    def check(self, config: RunConfig) -> None:
        _refuse_mean(config.failure, "use failure=mtbf or leave it out")
        _check_steps(config)
        _check_rank(config)
        _refuse_entries(config.failure)


class Listed(PlanKind):
    """failure=listed: each failure is written out in `failure.entries`."""

    keys = frozenset({"entries"})
    sets_times = True

    def entries(self, config: RunConfig) -> tuple[Entry, ...]:
        return tuple(parse(text) for text in config.failure.entries)

    def check(self, config: RunConfig) -> None:
        failure = config.failure
        _refuse_mean(failure, "use failure=mtbf or leave it out")
        if failure.steps:
            raise ConfigError(
                "failure.steps",
                f"{list(failure.steps)} planned, but failure.kind is listed",
                f"write them into {KEY}",
            )
        if not failure.entries:
            raise ConfigError(
                KEY,
                "failure.kind is listed and nothing is listed",
                f"give entries: {KEY}=[kill@40:1]",
            )
        for entry in self.entries(config):
            _check_entry(entry, config)

    def refusal(self, entry: Entry, key: str, reason: str, remedy: str) -> ConfigError:
        del key
        return ConfigError(KEY, f"'{entry}': {reason}", remedy)


class RandomKills(PlanKind):
    """failure=mtbf: kills of random ranks at random times. The gaps are exponential with mean
    `failure.mtbf_steps` or `failure.mtbf_s`, and those of a seed scale with the mean: half the mean
    gives half the gaps.

    A mean in steps gives every arm of a seed the same plan, whatever its speed. A mean in seconds
    of supervised time models a machine; the number of failures then depends on the run's duration.
    """

    keys = frozenset({"mtbf_steps", "mtbf_s"})
    sets_times = True
    draws = True

    def entries(self, config: RunConfig) -> tuple[Entry, ...]:
        """ConfigError if the mean is less than a step."""
        if config.failure.mtbf_steps < 1 and not config.failure.mtbf_s:
            fact = (
                "kind mtbf needs a mean of at least one step, failure.mtbf_steps is"
                f" {config.failure.mtbf_steps:g}"
            )
            raise ConfigError("failure", fact)
        return _by_time(config) if config.failure.mtbf_s else _by_steps(config)

    def check(self, config: RunConfig) -> None:
        failure = config.failure  # typed steps and ranks would be silently ignored
        if failure.steps:
            raise ConfigError(
                "failure.steps",
                f"{list(failure.steps)} planned, but failure.kind is mtbf, which draws its steps",
                "leave them out",
            )
        if failure.rank:
            raise ConfigError(
                "failure.rank",
                f"rank {failure.rank} named, but failure.kind is mtbf, which draws its ranks",
                "leave it out",
            )
        if failure.mtbf_s and failure.mtbf_steps:
            raise ConfigError(
                "failure.mtbf_s",
                "a mean in seconds and one in steps are given",
                "leave failure.mtbf_s or failure.mtbf_steps out",
            )
        if failure.mtbf_steps < 1 and not failure.mtbf_s:
            raise ConfigError(
                "failure.mtbf_steps",
                f"must be >= 1 for failure=mtbf, got {failure.mtbf_steps:g}",
                "give a mean: failure.mtbf_steps=200",
            )


def _by_steps(config: RunConfig) -> tuple[Entry, ...]:
    """Kills at strictly increasing steps below the target."""
    generator = _generator(config)
    found: list[Entry] = []
    instant, step = 0.0, 0
    while True:
        instant += config.failure.mtbf_steps * generator.exponential()
        share = generator.random()
        step = max(step + 1, math.ceil(instant))
        if step >= config.target_steps or len(found) > MOST_FAILURES:  # larger plans are refused
            return tuple(found)
        found.append(Entry("kill", step, who=(int(share * ranks_at(config, step)),)))


def _by_time(config: RunConfig) -> tuple[Entry, ...]:
    """Kills at instants of supervised time, as many as there may be restarts: the run may end
    before the last.
    """
    generator = _generator(config)
    found: list[Entry] = []
    instant = 0.0
    for _ in range(min(config.supervision.max_restarts, MOST_FAILURES)):
        instant += config.failure.mtbf_s * generator.exponential()
        found.append(
            Entry(
                "kill",
                moment="wall",
                who=(int(generator.random() * min(sizes(config))),),
                after_s=instant,
            )
        )
    return tuple(found)


def _generator(config: RunConfig) -> np.random.Generator:
    import numpy as np

    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([config.seed, STREAM])))


NOTHING, AT_STEPS, LISTED, RANDOM_KILLS = Nothing(), AtSteps(), Listed(), RandomKills()
_NAMED: dict[str, PlanKind] = {"none": NOTHING, "listed": LISTED, "mtbf": RANDOM_KILLS}


def plan_kind(kind: str) -> PlanKind:
    """How failures are planned where `failure.kind` is `kind`. ConfigError if there is no such
    kind.
    """
    # Which packages are installed is looked up only for a name that is not built in: it takes long.
    if kind not in _NAMED and kind not in BUILTIN and kind not in (known := FAILURES.names()):
        raise unknown(FAILURES.kind, kind, known)
    return _NAMED.get(kind, AT_STEPS)


def _refuse_mean(failure: FailureConfig, remedy: str) -> None:
    for key, mean in (
        ("failure.mtbf_steps", failure.mtbf_steps),
        ("failure.mtbf_s", failure.mtbf_s),
    ):
        if mean:
            raise ConfigError(key, f"a mean is given, but failure.kind is {failure.kind}", remedy)


def _refuse_entries(failure: FailureConfig) -> None:
    if failure.entries:
        raise ConfigError(
            KEY,
            f"failures are listed, but failure.kind is {failure.kind}",
            "add failure=listed or leave them out",
        )


def _check_steps(config: RunConfig) -> None:
    failure, target = config.failure, config.target_steps
    steps, least = failure.steps, 0 if failure.moment in STARTING else 1
    if not steps:
        raise ConfigError(
            "failure.steps",
            f"failure.kind is {failure.kind} and no step is planned",
            "give steps: failure.steps=[40,70]",
        )
    if steps[0] < least:
        raise ConfigError("failure.steps", f"must be >= {least}, got {steps[0]}")
    if any(after <= before for before, after in itertools.pairwise(steps)):
        raise ConfigError(
            "failure.steps",
            f"must be strictly increasing, got {list(steps)}",
            f"use {sorted(set(steps))}",
        )
    if steps[-1] > target:
        raise ConfigError(
            "failure.steps",
            f"step {steps[-1]} is beyond target_steps {target}",
            "lower it or raise target_steps",
        )
    if steps[-1] == target:
        raise ConfigError(
            "failure.steps",
            f"step {target} is the target: nothing would be left to recover",
            "lower it or raise target_steps",
        )


def _check_rank(config: RunConfig) -> None:
    """ConfigError unless the rank exists at each planned step: before and after it where the size
    changes there.
    """
    step = min(config.failure.steps, key=lambda planned: ranks_at(config, planned))
    rank, ranks = config.failure.rank, ranks_at(config, step)
    if rank >= ranks:
        where = f" at step {step}" if len(sizes(config)) > 1 else ""
        raise ConfigError(
            "failure.rank",
            f"rank {rank} does not exist with {plural(ranks, 'rank')}{where}",
            f"use 0 to {ranks - 1}",
        )


def _check_entry(entry: Entry, config: RunConfig) -> None:
    text, target = str(entry), config.target_steps
    if entry.moment != "wall":
        if entry.step < 1 and entry.moment not in STARTING:
            raise refused(
                text,
                f"a step must be >= 1, got {entry.step}",
                "step 0 is for failures of the first start: .start, .rendezvous, .load",
            )
        if entry.step >= target:
            fact = f"step {entry.step} is " + (
                "beyond target_steps"
                if entry.step > target
                else "the target: nothing would be left to recover"
            )
            raise refused(
                text,
                f"{fact}, got {target}" if entry.step > target else fact,
                "lower it or raise target_steps",
            )
    ranks = ranks_at(config, entry.step) if entry.moment != "wall" else min(sizes(config))
    if not isinstance(entry.who, str) and (
        missing := [rank for rank in entry.who if rank >= ranks]
    ):
        raise refused(
            text,
            f"rank {missing[0]} does not exist with {plural(ranks, 'rank')}",
            f"use 0 to {ranks - 1}",
        )
