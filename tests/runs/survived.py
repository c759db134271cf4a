"""Recorded runs whose ranks outlived others and went on: as a live supervisor and its ranks leave
them, and the ways to spoil them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ecrl_cli.config.recoveries import RECOVERIES, RecoveryKind
from ecrl_cli.config.schema import ElasticConfig, FailureConfig, RecoveryConfig, SupervisionConfig
from ecrl_cli.data.order import epoch_order, shard, window
from ecrl_cli.failures.fault_log import claim
from ecrl_cli.failures.plan import plan
from ecrl_cli.records.events import Attempt, InjectedFault, ResumedFrom
from ecrl_cli.records.journal import Journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import AttemptSpec
from ecrl_cli.records.survivor_records import LOST, LostSamples, RedoneStep, SurvivorReport
from tests.runs.builder import SAMPLES, WALL, RunBuilder, Worker, config_of

# Two buckets of "layers"; the one layer of the built checkpoints among them.
LAYERS = (("weight",), ("bias", "scale"))
ROLLBACK, LOSSY, RESTART, REDISTRIBUTE, SKIP = (
    "immediate_rollback",
    "lossy_forward",
    "checkpoint_restart",
    "redistribute",
    "skip",
)
REPLICAS = 4  # under a recovery that needs them


@dataclass(frozen=True)
class Death:
    """Ranks `lost` die in `step`. lossy: it is finished without them, bucket by bucket from each
    one's `first` on (2: they had given all they had).

    `spares`: how many of their places are taken. `logged`: whether the dead got to log the step.
    `all_anew`: nobody outlives it. `moment`: of the planned failure.
    """

    step: int
    lost: tuple[int, ...] = (1,)
    first: tuple[int, ...] = (1,)
    spares: int = 0
    logged: bool = False
    all_anew: bool = False
    moment: str = "backward"


def who(death: Death) -> str:
    return "+".join(map(str, sorted(death.lost)))


class SurvivedBuilder(RunBuilder):
    """`deaths`: by attempt; not `planned`, they are in no plan. `unmet`: entries of the plan that
    do not strike.

    `recovery`: its name; `does`: the one as which it behaves, if not as that.
    """

    def __init__(
        self,
        root: Path,
        recovery: str,
        deaths: tuple[Death, ...],
        ranks: int = 2,
        planned: bool = True,
        **more: Any,
    ) -> None:
        config = replace(config_of(root.name), world_size=ranks, recovery=RecoveryConfig(recovery))
        config = replace(
            config,
            supervision=SupervisionConfig(launcher="zygote", spares=sum(d.spares for d in deaths)),
        )
        config = replace(
            config,
            elastic=ElasticConfig(
                replicas=REPLICAS if RECOVERIES.of(recovery).needs_replicas else 0
            ),
        )
        entries = (
            *(f"kill@{d.step}.{d.moment}:{who(d)}" for d in deaths if planned),
            *more.pop("unmet", ()),
        )
        config = replace(
            config, failure=FailureConfig("listed" if entries else "none", entries=entries)
        )
        config = replace(config, variant=replace(config.variant, failures=bool(entries)))
        does: RecoveryKind | None = more.pop("does", None)
        super().__init__(root, config, **more)
        self.deaths, self.planned, self.lossy_steps = deaths, planned, list[int]()
        self.does = does or RECOVERIES.of(recovery)

    def ranks_behind(self, step: int) -> int:
        return self.size

    def parted(self, step: int) -> str:
        return "".join(f" lost in {each}" for each in self.lossy_steps if each < step)

    def attempt(self, number: int) -> Attempt:
        before = self.attempts[-1] if self.attempts else None
        fate = self.deaths[number - 1] if number else None
        goes_on = before is not None and before.outcome == "survived"
        resumed: ResumedFrom | None = None
        if before is not None and not goes_on:
            resumed, _ = self.choose(number)
        left = (
            [r for r in range(before.world_size) if fate and r not in fate.lost] if before else []
        )
        origins, joined = (
            origins_and_joined(left, fate, before.world_size)
            if fate and before and not fate.all_anew
            else ((), ())
        )
        self.size = len(origins) or self.config.world_size
        step = (
            before.last_step or 0
            if goes_on and before
            else int(resumed.path[-8:])
            if resumed
            else 0
        )
        self.lossy_steps = [each for each in self.lossy_steps if each <= step]
        if goes_on:
            self.chains[step] = [""] * self.size
        self.tick(0.01)
        taken = {"continues": number - 1, "memory": "survivors"} if goes_on else {}
        taken |= {"origins": origins, "joined": joined}
        return self.lived(number, step, resumed, taken)

    def lived(
        self, number: int, step: int, resumed: ResumedFrom | None, taken: dict[str, object]
    ) -> Attempt:
        launched = self.now
        pending = tuple(entry for entry in plan(self.config) if entry.index not in self.fired)
        seen = max((a.last_step or 0 for a in self.attempts), default=0)
        worker = LiveWorker(
            self, number, step, self.deaths[number] if number < len(self.deaths) else None
        )
        order = AttemptSpec(number, worker.ranks, step, resumed, seen, pending, **taken)  # type: ignore[arg-type]
        self.order(order, launched)
        self.store.claim(number)
        died = worker.lived(bool(taken["origins"]))
        ended = self.tick(0.2)
        lives_on = (
            "died"
            if not self.does.from_memory or (worker.fate and worker.fate.all_anew)
            else "survived"
        )
        return Attempt(
            attempt=number,
            world_size=worker.ranks,
            exit_code=None if died else 0,
            signal=9 if died else None,
            rank=min(worker.fate.lost) if died and worker.fate else None,
            outcome=lives_on if died else "completed",
            resumed_from_step=step,
            resumed_from=resumed,
            first_step=step + 1,
            last_step=worker.step,
            launched_at=launched,
            ended_at=ended,
            **taken,  # type: ignore[arg-type]
        )


def origins_and_joined(
    left: list[int], fate: Death, before: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(origins, joined): spares in the places of the dead as far as they go, survivors in order."""
    taken = set(sorted(fate.lost)[: fate.spares])
    origins = tuple(rank for rank in range(before) if rank in left or rank in taken)
    return origins, tuple(place for place, origin in enumerate(origins) if origin in taken)


class LiveWorker(Worker):
    """The ranks of one attempt, of which some may die in a step and the others leave behind one."""

    def __init__(self, run: SurvivedBuilder, attempt: int, step: int, fate: Death | None) -> None:
        super().__init__(run, attempt, step, {})
        self.live_run, self.fate = run, fate

    def lived(self, stayed: bool) -> bool:
        """Work until the target or until the survivors left; gives whether ranks died."""
        if not stayed:
            self.run.tick(0.3)
            self.spend("import", 0.5, 0)
        for category, seconds in (("rendezvous", 0.1), ("load", 0.2)):
            self.spend(category, seconds, 0)
        while self.step < self.run.config.target_steps:
            if self.fate and self.step + 1 == self.fate.step:
                self.die(self.fate)
                self.close()
                return True
            self.one_step()
            if self.step % 6 == 0:
                self.checkpoint()
        self.finish()
        self.close()
        return False

    def die(self, fate: Death) -> None:
        """In lossy_forward, or where nothing was missing, the step is finished; in skip it is
        dropped; else it is given up.
        """
        self.fault_fired(fate)
        self.booking -= set() if fate.logged else set(fate.lost)
        if fate.all_anew:
            return
        lossy = self.live_run.does.finishes_without
        whole = min(fate.first) >= len(LAYERS)
        if self.live_run.does.drops_step and not whole:
            self.drop(fate)
            return
        if not lossy and not whole:
            if 0 not in fate.lost:
                self.spend("sync", 0.05, self.step + 1)
            self.leave(())
            return
        journals = self.journals
        self.journals = [
            journal for rank, journal in enumerate(journals) if rank not in fate.lost or fate.logged
        ]
        kept = [rank for rank in range(self.ranks) if rank not in fate.lost or fate.logged]
        self.step_of(kept)
        self.journals = journals
        if not whole:
            self.live_run.lossy_steps.append(self.step)
        self.leave(self.redone(fate) if lossy else ())

    def drop(self, fate: Death) -> None:
        """Nobody logs the step, and all go on after it."""
        self.step += 1
        self.sampler.advance()
        self.live_run.lossy_steps.append(self.step)
        if 0 not in fate.lost:
            self.spend("sync", 0.05, self.step)
        self.leave((RedoneStep(self.step, 0, 1, tuple(sorted(fate.lost)), (), 0.0),))

    def fault_fired(self, fate: Death) -> None:
        if not self.live_run.planned:
            return
        entry = plan(self.run.config)[len(self.run.fired)]
        self.begun = self.run.now
        self.spend("compute", 0.01, fate.step)
        now = self.run.now
        fault = InjectedFault(
            entry.index,
            entry.kind,
            entry.rank,
            entry.global_step,
            self.number,
            now,
            now + WALL,
            at_step=fate.step,
        )
        assert claim(self.run.layout, fault)
        self.run.fired.add(entry.index)

    def step_of(self, ranks: list[int]) -> None:
        """One step of which only `ranks` write lines."""
        journals, chain = self.journals, self.chain
        every = dict(zip(ranks, journals, strict=True))
        self.journals = [every.get(rank, _Silent()) for rank in range(self.ranks)]  # type: ignore[arg-type]
        self.one_step()
        self.journals, self.chain = journals, chain

    def redone(self, fate: Death) -> tuple[RedoneStep, ...]:
        """The dead die one after the other, each at its own bucket."""
        found, left = [], list(range(self.ranks))
        for rank, first in zip(fate.lost, fate.first, strict=True):
            left.remove(rank)
            found.append(RedoneStep(self.step, first, len(LAYERS), (rank,), tuple(left), 0.01))
        return tuple(found)

    def leave(self, redone: tuple[RedoneStep, ...]) -> None:
        assert self.fate
        alive = tuple(rank for rank in range(self.ranks) if rank not in self.fate.lost)
        lines = self.lost_samples(redone)
        layers = (
            (tuple(name for bucket in LAYERS for name in bucket),)
            if redone and not redone[0].left
            else LAYERS
        )
        for rank in alive:
            each = tuple(
                replace(one, seconds=0.005 * (rank + 1) if one.left else 0.0) for one in redone
            )
            now = self.run.now
            said = SurvivorReport(
                self.step,
                self.number,
                rank,
                alive,
                each,
                layers if redone else (),
                "ab" * 32,
                now,
                now + WALL,
                "ab" * 32 if redone and not redone[0].left else "",
            )
            journals = [(self.logs.survivor_report(rank), [said])] + (
                [(self.logs.lost_samples(rank), lines)] if lines else []
            )
            for path, entries in journals:
                journal = Journal(path)
                for entry in entries:
                    journal.append(entry)
                journal.close()

    def lost_samples(self, redone: tuple[RedoneStep, ...]) -> list[LostSamples]:
        per_epoch = SAMPLES // self.run.config.global_batch
        order = epoch_order(
            self.run.config.seed,
            (self.step - 1) // per_epoch,
            SAMPLES,
            self.run.config.global_batch,
        )
        ids = window(order, (self.step - 1) % per_epoch, self.run.config.global_batch)
        found, cause, replicas = [], self.run.config.recovery.name, self.run.config.elastic.replicas
        if redone and not redone[0].left:
            return [
                LostSamples(
                    self.step,
                    LOST,
                    tuple(map(int, ids)),
                    tuple(name for bucket in LAYERS for name in bucket),
                    redone[0].lost,
                    cause,
                )
            ]
        for each in redone:
            layers = tuple(name for bucket in LAYERS[each.first :] for name in bucket)
            for rank in each.lost if layers else ():
                samples = tuple(int(name) for name in shard(ids, rank, self.ranks, replicas))
                found.append(LostSamples(self.step, LOST, samples, layers, (rank,), cause))
        return found


class _Silent:
    """The log of a rank that is dead."""

    def append(self, event: object) -> bytes:
        return b""


def build_lossy(folder: Path, name: str = "lossy", **more: Any) -> RunLayout:
    """Of four ranks the last two die in step 9, one after the other: two go on. Nothing of the
    first bucket is lost of the one that died later.
    """
    return SurvivedBuilder(
        folder / name, LOSSY, (Death(9, (3, 2), (0, 1)),), ranks=4, **more
    ).build()


def build_rollback(folder: Path, name: str = "rollback", **more: Any) -> RunLayout:
    """Rank 1 dies in step 9, which is given up, rank 0 in step 15, when it had given all: spares
    take their places.
    """
    deaths = (Death(9, spares=1), Death(15, (0,), (2,), spares=1))
    return SurvivedBuilder(folder / name, ROLLBACK, deaths, **more).build()


def build_redistributed(folder: Path, name: str = "redistributed", **more: Any) -> RunLayout:
    """Of four ranks with four replicas two die in step 9, which the two left do again; one of them
    dies in step 15, when it had given all.
    """
    return SurvivedBuilder(
        folder / name,
        REDISTRIBUTE,
        (Death(9, (3, 1), (0, 1)), Death(15, (0,), (2,))),
        ranks=4,
        **more,
    ).build()


def build_skipped(folder: Path, name: str = "skipped", **more: Any) -> RunLayout:
    """Of four ranks two die in step 9, which is dropped; the others go on after it, and drop step
    10, the first of theirs, as one dies in it.
    """
    return SurvivedBuilder(
        folder / name, SKIP, (Death(9, (3, 1), (0, 1)), Death(10, (1,))), ranks=4, **more
    ).build()


def build_spared(folder: Path, name: str = "spared") -> RunLayout:
    """Rank 1 dies in step 9; a spare takes its place, and both go back to the checkpoint of step
    6.
    """
    return SurvivedBuilder(folder / name, RESTART, (Death(9, spares=1),)).build()
