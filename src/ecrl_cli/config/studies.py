"""The settings of each study: one frozen dataclass per conf/study/NAME.yaml; defaults are the
published number of trials, or fewer where a larger number is called recorded. `refuse` raises
ConfigError for values that do not go together.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar

from ecrl_cli.config.failure_kinds import BUILTIN
from ecrl_cli.config.recoveries import RECOVERIES
from ecrl_cli.config.registry import import_attribute
from ecrl_cli.config.schema import CAPTURES, LAYOUTS, WRITE_MODES, at_least, one_of, positive
from ecrl_cli.errors import ConfigError, shown

MOST = 100_000  # of any count: the plan is made before the first trial


def count(default: int, minimum: int) -> Any:
    """A count of trials or the like: `minimum` to MOST."""
    return field(default=default, metadata={"minimum": minimum, "below": MOST + 1})


def some_counts(default: tuple[int, ...], minimum: int, most: int) -> Any:
    """A field of distinct integers from `minimum` to `most`."""
    return field(default=default, metadata={"minimum": minimum, "below": most + 1})


def some_of(choices: tuple[str, ...], default: tuple[str, ...] | None = None) -> Any:
    """A field of distinct names out of `choices`; by default all, or `default`."""
    return field(default=choices if default is None else default, metadata={"choices": choices})


WRITING = ("blocking", "overlapped")
# first: no checkpoints/ yet. overlapped: two in flight. rejected: over a damaged one. again: a step
# saved twice. recovery: after a crash.
POWER_LOSS_WORKLOADS = tuple(
    "first one two pointer retention overlapped stale_stage rejected again recovery".split()
)
# Failure kinds in the study `failures`. A partition needs a network namespace; backward is a kill.
STRUCK = tuple(kind for kind in BUILTIN if kind not in ("backward", "partition"))


@dataclass(frozen=True)
class WriteLatency:
    """`checkpoints` per seed and mode, modes interleaved. Published: 10 seeds x 40, 128 KiB model
    and 64 KiB optimizer.
    """

    SIZES: ClassVar[tuple[str, ...]] = ("checkpoints",)
    name: str = "write-latency"
    modes: tuple[str, ...] = some_of(WRITE_MODES)
    layout: str = field(default="group", metadata={"choices": LAYOUTS})
    seeds: int = count(10, 1)
    checkpoints: int = count(40, 1)
    model_bytes: int = at_least(128 * 1024, 4)
    optimizer_bytes: int = at_least(64 * 1024, 4)

    def refuse(self) -> None:
        if self.seeds * self.checkpoints > MOST:
            fact = (
                f"{self.seeds} seeds of {self.checkpoints} checkpoints are more than {MOST} saves"
                " per mode"
            )
            raise ConfigError("study.checkpoints", fact, "lower one of them")


@dataclass(frozen=True)
class CrashPoints:
    """`trials` at after_model and without a crash, `fewer` at every other point (published 400 and
    10); `kills`: at a random microsecond, per mode. A kill keeps the page cache, so trials may be
    in memory (`in_memory`) instead of beside their records, and be small.
    """

    SIZES: ClassVar[tuple[str, ...]] = ("fewer", "kills")
    name: str = "crash-points"
    modes: tuple[str, ...] = some_of(WRITE_MODES)
    layouts: tuple[str, ...] = some_of(LAYOUTS)
    strategies: tuple[str, ...] = some_of(WRITING)
    trials: int = count(400, 1)
    fewer: int = count(10, 1)
    kills: int = count(2000, 0)
    model_bytes: int = at_least(16 * 1024, 4)
    optimizer_bytes: int = at_least(8 * 1024, 4)
    in_memory: bool = True
    planted: bool = True


@dataclass(frozen=True)
class PowerLoss:
    """`arms`: model (every legal state, enumerated), shutdown (loop image cut off), blocks (block
    log replayed).

    The model: up to `model_states` states of each moment (64 times as many under atomic_dirsync),
    recovery itself cut off from `model_second` of them per cell, `model_folders` rebuilt in real
    folders.

    The real file systems: `real_trials` shutdowns per subject and file system (recorded: 1000) in
    `real_blocks` blocks, each on fresh ones, within `real_window_s` of the first acknowledgement;
    `real_states` crash states per block log; payload of `real_model_bytes` and
    `real_optimizer_bytes`.
    """

    SIZES: ClassVar[tuple[str, ...]] = (
        "real_trials",
        "real_states",
        "model_states",
        "model_second",
        "model_folders",
    )
    name: str = "power-loss"
    arms: tuple[str, ...] = some_of(("model", "shutdown", "blocks"))
    modes: tuple[str, ...] = some_of(WRITE_MODES)
    planted: bool = True
    model_workloads: tuple[str, ...] = some_of(POWER_LOSS_WORKLOADS)
    model_states: int = count(2048, 64)
    model_second: int = count(100, 4)
    model_folders: int = count(2000, 1)
    real_trials: int = count(30, 1)
    real_blocks: int = count(5, 1)
    real_states: int = count(80, 1)
    real_window_s: float = positive(0.03)
    real_model_bytes: int = at_least(32 * 1024, 4)
    real_optimizer_bytes: int = at_least(16 * 1024, 4)


@dataclass(frozen=True)
class Corruption:
    """`trials` of each published fault and of the control (published: 400); `random` of each random
    fault; `seeds` per structural row; `clean` verifications that must pass; `flips` of one bit per
    stock loader.
    """

    SIZES: ClassVar[tuple[str, ...]] = ("random", "seeds", "clean", "flips")
    name: str = "corruption"
    arms: tuple[str, ...] = some_of(
        ("published", "exhaustive", "random", "structural", "recovery", "clean", "anchors")
    )
    trials: int = count(400, 1)
    random: int = count(1000, 1)
    seeds: int = count(20, 1)
    clean: int = count(10_000, 1)
    flips: int = count(300, 1)
    planted: bool = True


@dataclass(frozen=True)
class IoErrors:
    """`arms`: calls (in memory: each call of each operation fails in each way, once or
    permanently), space (a tmpfs with room for 0, 1, 2, ...
    `spaces` - 1 pages), inodes (likewise), sync (strace fails the K-th fsync of a real process).
    """

    SIZES: ClassVar[tuple[str, ...]] = ("spaces",)
    name: str = "io-errors"
    arms: tuple[str, ...] = some_of(("calls", "space", "inodes", "sync"))
    operations: tuple[str, ...] = some_of(
        ("save", "save again", "settle", "recover", "claim", "set aside")
    )
    modes: tuple[str, ...] = some_of(WRITE_MODES)
    layouts: tuple[str, ...] = some_of(LAYOUTS)
    spaces: int = count(200, 1)
    planted: bool = True


@dataclass(frozen=True)
class DiskTimeline:
    """`checkpoints` per mode, one every `every_s`; the disk is sampled every `fine_s`, shown also
    every `interval_s` (published: 1 s).
    """

    SIZES: ClassVar[tuple[str, ...]] = ("checkpoints",)
    name: str = "disk-timeline"
    modes: tuple[str, ...] = some_of(WRITE_MODES)
    checkpoints: int = count(4, 1)
    every_s: float = positive(3.0)
    interval_s: float = positive(1.0)
    fine_s: float = positive(0.1)
    model_bytes: int = at_least(128 * 1024, 4)
    optimizer_bytes: int = at_least(64 * 1024, 4)


@dataclass(frozen=True)
class Writers:
    """Two concurrent writers, with fencing and races; clocks that jump; names that appear late.

    `races`: simultaneous starts of two supervisors. `every`: pause a writer before each `every`-th
    call. `lies`: run histories under false clocks. `saves`: of a writer that is read concurrently.
    """

    SIZES: ClassVar[tuple[str, ...]] = ("races", "lies", "saves")
    name: str = "writers"
    races: int = count(200, 1)
    every: int = count(1, 1)
    lies: int = count(100, 1)
    saves: int = count(200, 1)
    planted: bool = True


@dataclass(frozen=True)
class Hostile:
    """Checkpoints and records prepared by an adversary. `every`: try each `every`-th input.
    `deadline_s`: after that a reader counts as hung.
    """

    name: str = "hostile"
    every: int = count(1, 1)
    deadline_s: float = positive(300.0)


@dataclass(frozen=True)
class Hangs:
    """`each`: how often each hang, death or leak is tried; `slow`: scenarios of 1,000 slow steps
    for the detector.
    """

    SIZES: ClassVar[tuple[str, ...]] = ("slow", "each")
    name: str = "hangs"
    each: int = count(1, 1)
    slow: int = count(20, 1)
    planted: bool = True


@dataclass(frozen=True)
class Signals:
    """`each`: how often each signal is sent in each phase."""

    SIZES: ClassVar[tuple[str, ...]] = ("each",)
    name: str = "signals"
    each: int = count(1, 1)
    planted: bool = True


@dataclass(frozen=True)
class StoreSoak:
    """`ops` random operations (recorded: 200,000) in programs of `length`, modes and layouts in
    turn, compared with a reference model.
    """

    SIZES: ClassVar[tuple[str, ...]] = ("ops",)
    name: str = "store-soak"
    modes: tuple[str, ...] = some_of(WRITE_MODES)
    layouts: tuple[str, ...] = some_of(LAYOUTS)
    ops: int = field(default=10_000, metadata={"minimum": 1, "below": 10 * MOST + 1})
    length: int = count(50, 1)
    planted: bool = True


@dataclass(frozen=True)
class Failures:
    """`trials` real training runs (recorded: 500), each under two failures drawn from `kinds`.
    `capture`: checkpoint.capture of the strategies that can defer.
    """

    name: str = "failures"
    trials: int = count(120, 1)
    kinds: tuple[str, ...] = some_of(STRUCK)
    strategies: tuple[str, ...] = some_of(WRITING)
    capture: str = one_of("copy", CAPTURES)
    planted: bool = True


@dataclass(frozen=True)
class Elastic:
    """`trials` real training runs (recorded: 500) with random world sizes and random kills, with
    fixed replicas and without.
    """

    name: str = "elastic"
    trials: int = count(60, 1)
    strategies: tuple[str, ...] = some_of(WRITING)
    planted: bool = True


@dataclass(frozen=True)
class LiveRecovery:
    """Real training runs in which ranks die and others survive: a fixed matrix, then `trials`
    random runs (recorded: 200).
    """

    name: str = "live-recovery"
    trials: int = count(12, 1)
    recoveries: tuple[str, ...] = some_of(RECOVERIES.builtin)
    strategies: tuple[str, ...] = some_of(("none", *WRITING))
    planted: bool = True


@dataclass(frozen=True)
class Compat:
    """Golden checkpoints of every format version, and of versions that do not exist."""

    name: str = "compat"


JOBS = (
    *("plain", "accumulation", "gpt", "dcp", "fsdp", "rl"),
    *("stateful_loader", "lightning_job", "trainer_job", "accelerate_job", "streaming_job"),
)


@dataclass(frozen=True)
class Frameworks:
    """Jobs of examples/jobs, killed in several places and audited. `jobs`: which scripts;
    `processes`: on how many ranks, where a job can. `random`: audits of healthy jobs killed
    anywhere (recorded: 100).
    """

    SIZES: ClassVar[tuple[str, ...]] = ("random",)
    name: str = "frameworks"
    jobs: tuple[str, ...] = some_of(JOBS)
    processes: tuple[int, ...] = some_counts((1, 2), 1, 2)
    random: int = count(20, 0)
    planted: bool = True


RACERS = ("ECRL", "ckpt-chaos", "TrainParity", "pytest-torch", "TrainCheck")
RACE_JOBS = (
    *("plain", "trainer_as_documented", "best_lost", "two_opts"),
    *("latest_early", "get_batch_exact", "late_optimizer", "bytes_save"),
    *("unit_norm", "ema_lost", "target_net", "lexical"),
    *("sigterm_save", "second_resume", "wont_load", "lightning_job"),
    "trainer_job",
)


@dataclass(frozen=True)
class Rivals:
    """Tools that judge recovery, over the same jobs. `tools`: which of them; `jobs`: which of
    studies/rivals/subjects.yaml. `environments`: a folder in which a tool may have an
    environment of its own, ENVIRONMENTS/TOOL (lower case); else it is looked for beside ECRL.
    `points`: the most moments of death that ckpt-chaos tries in a job (its own default: 40).
    """

    SIZES: ClassVar[tuple[str, ...]] = ("points",)
    name: str = "rivals"
    tools: tuple[str, ...] = some_of(RACERS)
    jobs: tuple[str, ...] = some_of(RACE_JOBS)
    environments: str = ""
    points: int = count(40, 1)


@dataclass(frozen=True)
class Libraries:
    """Jobs in released libraries under the whole audit. `python`: the interpreter that has them
    (examples/libraries/constraints.txt); `only`: rows whose name holds this text; `examples`:
    also those of examples/jobs.
    """

    SIZES: ClassVar[tuple[str, ...]] = ()
    name: str = "libraries"
    python: str = field(default_factory=lambda: sys.executable)
    only: str = ""
    examples: bool = True


@dataclass(frozen=True)
class MiniBatchFailure:
    """Workers die in the middle of a mini-batch; simulated, `replicas` workers in sequence.
    Published: 8 workers, 25, 50 and 75% of the gradients applied, 2 to 6 survivors.

    `scale`: paper (as published, days), middle (learnt to a real accuracy, hours on two cores),
    small (minutes), smoke (seconds).
    `percents`: of the gradient tensors in backward order (0: in forward). `casualties`: drawn per
    seed, or the last workers, or the first.
    `data`: synthetic, or files under `root`. `mask`, `buffers`, `division`: the corrections of the
    published simulation, each of which can be left out. `long_run`: also continue to the end of the
    run, after one failure and after `failures`. `rounds`: of timing. `averages`: in the arm with
    dormant workers, 0: without it. `hours`: upper limit of the study's own time estimate.
    """

    SIZES: ClassVar[tuple[str, ...]] = ("seeds", "rounds", "averages")
    name: str = "mini-batch-failure"
    scale: str = field(default="small", metadata={"choices": ("small", "middle", "paper", "smoke")})
    applications: tuple[str, ...] = some_of(("resnet50", "nt3"))
    strategies: tuple[str, ...] = some_of(
        (
            "checkpoint_restart",
            "half_updated_rollback",
            "consistent_rollback",
            "lossy_forward",
            "skip",
        )
    )
    percents: tuple[int, ...] = some_counts((25, 50, 75), 0, 99)
    survivors: tuple[int, ...] = some_counts((2, 3, 4, 5, 6), 1, 1023)
    replicas: int = field(default=8, metadata={"minimum": 2, "below": 1025})
    casualties: str = field(default="drawn", metadata={"choices": ("drawn", "last", "first")})
    seeds: int = count(4, 1)
    data: str = field(default="made", metadata={"choices": ("made", "files")})
    root: str = "data"
    mask: bool = True
    buffers: bool = True
    division: bool = True
    long_run: bool = True
    failures: int = count(4, 1)
    rounds: int = count(3, 1)
    averages: int = count(200, 0)
    hours: float = positive(12.0)

    def refuse(self) -> None:
        if max(self.survivors) >= self.replicas:
            fact = (
                f"{max(self.survivors)} survivors of {self.replicas} workers: nobody would have"
                " died"
            )
            raise ConfigError("study.survivors", fact, "lower it or raise study.replicas")


@dataclass(frozen=True)
class RecoveryOverhead:
    """The cost of each recovery strategy: a sum of measured parts, and an event-driven simulation
    of a job at scale.

    `source`: published (Table I), typed, or a folder of runs, whose failures are then predicted
    too. A part typed in seconds overrides the source's (0: not typed). `mtbf_min`: minutes between
    failures of a system of `reference_workers` (0: of any size); `fatal_percent`: of failures that
    leave no state to continue from. A job has work for `failures` MTBFs and is repeated
    `repetitions` times. `replace_s`: until a dead worker is replaced; a warm spare starts in
    `spare_share` of a start. `weibull_shape`: of the gaps in the arm beside the exponential ones.
    """

    SIZES: ClassVar[tuple[str, ...]] = ("repetitions",)
    name: str = "recovery-overhead"
    source: str = "published"
    mtbf_min: tuple[int, ...] = some_counts((45, 240, 600, 1320), 1, 10**7)
    workers: tuple[int, ...] = some_counts((8, 64, 512, 4000, 32_000, 100_000), 1, 10**7)
    reference_workers: int = count(4000, 0)
    fatal_percent: tuple[int, ...] = some_counts((0, 5), 0, 100)
    casualties: int = count(1, 1)
    replace_s: float = at_least(0.0, 0)
    spare_share: float = field(default=0.2, metadata={"minimum": 0.0, "below": 1.0})
    weibull_shape: float = positive(0.7)
    failures: int = field(default=100, metadata={"minimum": 1, "below": 10_001})
    repetitions: int = field(default=48, metadata={"minimum": 3, "below": 10_001})
    every: int = count(0, 0)
    mini_batch_s: float = at_least(0.0, 0)
    checkpoint_s: float = at_least(0.0, 0)
    init_s: float = at_least(0.0, 0)
    restart_s: float = at_least(0.0, 0)
    detect_s: float = at_least(0.0, 0)
    regroup_s: float = at_least(0.0, 0)
    join_s: float = at_least(0.0, 0)
    snapshot_s: float = at_least(0.0, 0)
    planted: bool = True

    def refuse(self) -> None:
        if (
            self.source not in ("published", "typed")
            and not Path(self.source).expanduser().is_dir()
        ):
            raise ConfigError(
                "study.source",
                f"{shown(self.source)} is no folder",
                "give published, typed, or the folder of a run or a sweep",
            )
        for key in ("mini_batch_s", "checkpoint_s") if self.source == "typed" else ():
            if getattr(self, key) == 0:
                raise ConfigError(
                    f"study.{key}",
                    "is 0, and study.source=typed has no other",
                    f"give the seconds: study.{key}=SECONDS",
                )
        if self.casualties >= min(self.workers):
            fact = (
                f"{self.casualties} of {min(self.workers)} workers leave no survivor, and"
                " strategies are compared that need one"
            )
            raise ConfigError(
                "study.casualties", fact, "lower it, or leave so few out of study.workers"
            )


_KINDS = (
    WriteLatency,
    CrashPoints,
    PowerLoss,
    Corruption,
    IoErrors,
    DiskTimeline,
    Writers,
    Hangs,
    Signals,
    Hostile,
    StoreSoak,
    Failures,
    Elastic,
    LiveRecovery,
    Compat,
    Frameworks,
    Rivals,
    Libraries,
    RecoveryOverhead,
    MiniBatchFailure,
)
STUDIES: dict[str, type[Any]] = {kind.name: kind for kind in _KINDS}


def study_keys(name: str) -> type[Any] | None:
    """The settings class of the study `name`, built-in or of an installed package; None if there is
    no such study.
    """
    if name in STUDIES:
        return STUDIES[name]
    for point in entry_points(group="ecrl.studies", name=name):
        keys: type[Any] = import_attribute("study", name, point.value).keys
        return keys
    return None
