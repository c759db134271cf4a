"""The base class of every kind of failure, and the kinds by name: built-in ones, and those of
installed packages (entry points in the group `ecrl.failures`). Torch-free.

The plan, the ranks, the supervisor and `verify` ask the kind's object (`fault_kind`) and never
compare names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ecrl_cli.config.fault_spec import FAILURES, Entry
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import ConfigError
from ecrl_cli.records.events import Attempt, InjectedFault, PlannedFailure
from ecrl_cli.records.layout import RunLayout

if TYPE_CHECKING:
    from ecrl_cli.checkpoint.store.store import CheckpointStore
    from ecrl_cli.history.load import RunRecords
    from ecrl_cli.storage.fault_injecting_fs import Fault


class Victim(Enum):
    """The target of a failure kind. The value is the subject of the kind's `text`, unless it is a
    rank.
    """

    RANK = "a rank"
    RANKS = "a rank, several, all, or a node"
    RANK_0 = "rank 0"
    WRITER = "whoever writes"
    SAVE = "the save"
    CHECKPOINT = "the newest checkpoint"
    SUPERVISOR = "the supervisor"

    @property
    def is_rank(self) -> bool:
        return self in (Victim.RANK, Victim.RANKS, Victim.RANK_0)


class Ends(Enum):
    """The unit that the failure terminates."""

    NOTHING = "nothing"
    VICTIM = "its victim, at once: the ranks that are left may go on"
    WRITER = "the process that writes: rank 0 with its attempt, or the background writer alone"
    ATTEMPT = "the attempt: all ranks begin anew"


class Death(NamedTuple):
    """How the first process to terminate dies of a kind: its exit code or its signal."""

    exit_code: int | None = None
    signal: int | None = None


class RefusedFault(Exception):
    """A failure that cannot be planned as typed. `key`: within the group `failure`; `reason` and
    `remedy`: for the one-line error.
    """

    def __init__(self, key: str, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.key, self.reason, self.remedy = key, reason, remedy


@dataclass(frozen=True)
class InjectionContext:
    """Arguments of `inject`. `peers`: pids by rank, of the ranks hit with this one. `output`: of
    the module in whose forward it is injected.
    """

    layout: RunLayout
    entry: PlannedFailure
    peers: Mapping[int, int] = field(default_factory=dict)
    output: Any = None


class SaveInProgress(Protocol):
    """The save that a fault is injected into (failures/faulty_store.py), for `inject_into_save`."""

    def fail_next(self, fault: Fault) -> None: ...

    def slow_down(self, seconds: float, saves: int) -> None: ...


@dataclass(frozen=True)
class BetweenAttempts:
    """Arguments of `inject_at_rest`. `seed`: of this entry. `chooses`: whether the next attempt
    resumes from a checkpoint.
    """

    root: Path
    store: CheckpointStore
    seed: int
    chooses: bool


class PreparedFault(NamedTuple):
    """An injection between two attempts: `detail` is recorded, then `inject` is called."""

    detail: str
    inject: Callable[[], None]


class Problem(NamedTuple):
    """A contradiction between a run's records and an injected failure. `proven` is False where the
    evidence is only missing.
    """

    text: str
    proven: bool = True


@dataclass(frozen=True)
class RecordedFault:
    """An injected failure in the records of its run, for `trace`. `explained`: whether injected
    failures explain the end of its attempt; `cut_short`: whether another one does that was injected
    at the same time, so that the attempt may have been ended before this one struck.
    """

    run: RunRecords
    fired: InjectedFault
    planned: PlannedFailure
    explained: bool = False
    cut_short: bool = False

    @property
    def config(self) -> RunConfig:
        return self.run.stored.config

    @property
    def completed(self) -> bool:
        return (
            self.run.supervisor is not None and self.run.supervisor.terminal_status == "completed"
        )

    @property
    def attempt(self) -> Attempt | None:
        """The attempt that was hit; None where supervisor.json does not list it."""
        return next((a for a in self.run.attempts if a.attempt == self.fired.attempt), None)


def how_it_ended(a: Attempt) -> str:
    return f"rank {a.rank}, exit code {a.exit_code}, signal {a.signal}"


class FaultKind:
    """One kind of failure. A subclass sets what differs from the defaults below and overrides the
    methods that it needs.

    `tests/contract/test_failure_kinds.py` checks every registered kind against what it declares
    here.
    """

    # Texts. `description`: one sentence for help and docs, the first comment of its YAML file.
    # `shows`: what a valid run under this failure shows. `text`: the predicate in the printed plan,
    # after the victim; `{seconds}` is replaced by the duration.
    name = ""
    description = ""
    shows = ""
    text = ""

    # When and what it hits, the default moment first (config/fault_spec.py lists all), and which
    # parameters it takes.
    moments: tuple[str, ...] = ("boundary",)
    victim = Victim.RANK
    share = 0.5  # default: how far into forward, backward or the update it is injected
    takes_share = True
    seconds = 0.0  # default duration; 0: it takes none
    lasts = 1  # steps
    point = ""  # default point of the store's protocol; empty: it takes none
    flushes = False  # at a boundary: whether all ranks first wait for the checkpoints in flight
    # in forward: whether the result of `inject` replaces the model's output
    replaces_output = False
    needs_network = False  # whether each attempt of the run gets its own network namespace
    needs_checkpoints = 0  # how many valid checkpoints must exist before it is injected

    # The signal that the supervisor sends at a wall time: to the rank, or to itself where it is the
    # victim. Required for moment `wall`.
    sends: int | None = None

    # The consequences, which `verify` looks for in the records.
    ends = Ends.VICTIM
    death: Death | None = None  # None: it does not determine how an attempt ends
    # how the supervisor ends: exit code, or minus the signal; None: it survives
    supervisor_exit: int | None = None
    hangs = False  # the victim hangs; the hang detector ends the attempt
    # a collective hangs rather than one rank: any rank may be reported, and the victim may finish
    # its step
    stalls_exchange = False
    graceful = False  # graceful stop: the victim continues until all ranks stop after the same step

    @property
    def takes_rank(self) -> bool:
        """Whether the user chooses the rank."""
        return self.victim in (Victim.RANK, Victim.RANKS)

    @property
    def others_go_on(self) -> bool:
        """Whether the surviving ranks may continue without the victim, which does nothing more in
        its step.
        """
        return self.ends is Ends.VICTIM

    @property
    def may_cut_update(self) -> bool:
        """Whether it may be injected when only part of the parameters are updated: only if that
        state is never used again.
        """
        return self.ends is Ends.VICTIM

    @property
    def death_tells(self) -> bool:
        """Whether the victim's death can be told from that of a rank that fails because its peers
        have died (exit code 1).
        """
        return self.others_go_on and self.death not in (None, Death(exit_code=1))

    def ends_attempt(self, entry: PlannedFailure, config: RunConfig) -> bool:
        """Whether the attempt that `entry` hits ends because of it."""
        del config
        return self.ends is not Ends.NOTHING and entry.moment != "rest"

    # Planning.

    def refuses(self, config: RunConfig) -> str | None:
        """Why it cannot happen in any run of this configuration, or None."""
        del config
        return None

    def expand(self, entry: Entry, config: RunConfig) -> tuple[Entry, ...]:
        """The entries that a typed one stands for. RefusedFault if there can be none."""
        del config
        return (entry,)

    def wrong_point(self, point: str, config: RunConfig) -> str | None:
        """Why no save of this run can be hit at `point` of the store's protocol, or None. For kinds
        that hit a save.
        """
        del point, config
        return None

    def check(self, entry: PlannedFailure, config: RunConfig) -> None:
        """RefusedFault if a planned entry breaks a rule specific to the kind."""

    # Injection.

    def inject(self, context: InjectionContext) -> Any:
        """Injects the fault, in the process that is hit: a rank, or the writer."""
        raise NotImplementedError(f"{self.name} is injected by no rank")

    def inject_into_save(self, save: SaveInProgress, context: InjectionContext) -> None:
        """Injects the fault into a save, at its point, in the process that writes."""
        del save
        self.inject(context)

    def inject_at_rest(self, between: BetweenAttempts) -> PreparedFault | None:
        """The injection for the supervisor to do between two attempts; None: not yet. For moment
        `rest`.
        """
        raise NotImplementedError(f"{self.name} cannot be injected at rest")

    # Verification.

    def trace(self, fault: RecordedFault) -> Iterable[Problem]:
        """Problems in the records that contradict the failure's effects; verify/fault_effects.py
        checks the ends of attempt and victim.
        """
        del fault
        return ()


@cache
def fault_kind(name: str) -> FaultKind:
    """The kind called `name`. ConfigError if there is none, or its package cannot be imported."""
    found = FAILURES.load(name)
    if not (isinstance(found, type) and issubclass(found, FaultKind) and found.name == name):
        raise ConfigError(
            "failure",
            f"the entry point {name!r} in {FAILURES.group} is no FaultKind of that name",
            "mend its package, or remove it",
        )
    return found()


class _Unknown(FaultKind):
    """Stands for a kind in records that is not known here: its attempt may end in any way."""

    ends = Ends.ATTEMPT


def recorded_kind(name: str) -> FaultKind:
    """Like `fault_kind`, for names from records, which may be arbitrary text."""
    try:
        return fault_kind(name)
    except ConfigError:
        return _Unknown()


def table() -> str:
    """A Markdown table of all kinds, for the docs."""
    head = (
        "| `failure=` | what happens | when it can be injected | what it shows |",
        "| --- | --- | --- | --- |",
    )
    kinds = [fault_kind(name) for name in FAILURES.names()]
    return "\n".join(
        (
            *head,
            *(
                f"| `{kind.name}` | {kind.description} | {', '.join(kind.moments)} | {kind.shows} |"
                for kind in kinds
            ),
        )
    )
