"""What a kind of failure says about itself: the base class of every kind. Torch-free.

The plan, the ranks, the supervisor and `verify` ask the kind's object (failures/registry.py finds it by name) and never compare names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ecrl_cli.config.fault_spec import Entry, typed_entries
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.records.events import Attempt, InjectedFault, PlannedFailure, SupervisorSession
from ecrl_cli.records.layout import RunLayout

if TYPE_CHECKING:
    from ecrl_cli.checkpoint.store.store import CheckpointStore
    from ecrl_cli.history.load import RunRecords
    from ecrl_cli.storage.fault_injecting_fs import Fault


class Victim(Enum):
    """Whom a kind strikes. The value stands before the kind's `text` where it is no rank."""

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
    """What comes to its end by a kind."""

    NOTHING = "nothing"
    VICTIM = "its victim, at once: the ranks that are left may go on"
    WRITER = "the process that writes: rank 0 with its attempt, or the background writer alone"
    ATTEMPT = "the attempt: all ranks begin anew"


class Death(NamedTuple):
    """How the first process that ends of a kind ends: by exit code or by signal."""

    exit_code: int | None = None
    signal: int | None = None


class RefusedFault(Exception):
    """A failure that cannot be planned as it was typed. `key`: of the group `failure`; `reason` and `remedy`: for one line."""

    def __init__(self, key: str, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.key, self.reason, self.remedy = key, reason, remedy


@dataclass(frozen=True)
class InjectionContext:
    """What `inject` may use. `peers`: pids by rank, of the ranks that go with the victim. `output`: of the module whose forward is struck."""

    layout: RunLayout
    entry: PlannedFailure
    peers: Mapping[int, int] = field(default_factory=dict)
    output: Any = None


class SaveInProgress(Protocol):
    """The save that is struck (failures/faulty_store.py), for `strike_save`."""

    def fail_next(self, fault: Fault) -> None: ...

    def slow_down(self, seconds: float, saves: int) -> None: ...


@dataclass(frozen=True)
class BetweenAttempts:
    """What `strike_at_rest` may use. `seed`: of this entry. `chooses`: whether the next attempt goes back to a checkpoint."""

    root: Path
    store: CheckpointStore
    seed: int
    chooses: bool


class Strike(NamedTuple):
    """What is about to be done between two attempts: recorded as `detail`, then done."""

    detail: str
    inject: Callable[[], None]


class Problem(NamedTuple):
    """What the records of a run say against a failure having done what its kind does. `proven`: else what would show it is not there."""

    text: str
    proven: bool = True


@dataclass(frozen=True)
class RecordedFault:
    """A failure that struck, in the records of its run, for `trace`. `explained`: whether others that struck explain the end of its attempt."""

    run: RunRecords
    fired: InjectedFault
    planned: PlannedFailure
    explained: bool = False

    @property
    def config(self) -> RunConfig:
        return self.run.stored.config

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return self.run.supervisor.attempts if self.run.supervisor else ()

    @property
    def sessions(self) -> tuple[SupervisorSession, ...]:
        return self.run.supervisor.sessions if self.run.supervisor else ()

    @property
    def completed(self) -> bool:
        return self.run.supervisor is not None and self.run.supervisor.terminal_status == "completed"

    @property
    def attempt(self) -> Attempt | None:
        """The attempt that was struck; None where supervisor.json has none of its number."""
        return next((a for a in self.attempts if a.attempt == self.fired.attempt), None)

    def session_of(self, a: Attempt) -> SupervisorSession | None:
        return self.sessions[a.session] if 0 <= a.session < len(self.sessions) else None


def how_it_ended(a: Attempt) -> str:
    return f"rank {a.rank}, exit code {a.exit_code}, signal {a.signal}"


class FaultKind:
    """One kind of failure. A subclass sets what differs from the values below and overrides the methods that it needs.

    `tests/contract/test_failure_kinds.py` holds every registered kind to what it says here.
    """

    # What it is. `description`: one sentence for help and docs, the first comment of its YAML file. `shows`: what a run that meets it and stays
    # valid shows. `text`: what happens, for the printed plan, behind the victim; `{seconds}` stands for how long.
    name = ""
    description = ""
    shows = ""
    text = ""

    # When and whom it strikes, its own moment first (config/fault_spec.py lists all), and which parameters it takes.
    moments: tuple[str, ...] = ("boundary",)
    victim = Victim.RANK
    share = 0.5  # how far into forward, backward or the update it strikes, where the entry says nothing
    takes_share = True
    seconds = 0.0  # how long by default; 0: it takes no time
    lasts = 1  # steps
    point = ""  # of the store's protocol, by default; empty: it takes none
    flushes = False  # at a boundary: whether all ranks first wait for the checkpoints in flight
    replaces_output = False  # in forward: whether what `inject` gives takes the place of the model's output
    needs_network = False  # whether each attempt of the run gets a network namespace of its own
    needs_checkpoints = 0  # how many valid ones there must be for it to strike

    # What the supervisor sends at a wall time: to the rank, or to itself where it is the victim. Needed for moment `wall`.
    sends: int | None = None

    # What comes of it, and what `verify` looks for in the records.
    ends = Ends.VICTIM
    death: Death | None = None  # None: it says nothing by itself of how an attempt ends
    supervisor_exit: int | None = None  # how the supervisor ends of it: exit code, or minus the signal; None: it lives
    hangs = False  # the victim neither works nor dies; the hang detector ends the attempt
    stalls_exchange = False  # the exchange between ranks hangs rather than one rank: any may be blamed, and its victim may end its step
    graceful = False  # the run is asked to stop: the victim works on until all stop behind one step

    @property
    def takes_rank(self) -> bool:
        """Whether the user says which rank."""
        return self.victim in (Victim.RANK, Victim.RANKS)

    @property
    def others_go_on(self) -> bool:
        """Whether the ranks that it leaves may go on without its victim, which does nothing more in its step."""
        return self.ends is Ends.VICTIM

    @property
    def may_cut_update(self) -> bool:
        """Whether it may strike when part of the parameters are updated: only where nothing goes on with them."""
        return self.ends is Ends.VICTIM

    @property
    def death_tells(self) -> bool:
        """Whether its victim's death is told from that of a rank that fails because others have gone (exit code 1)."""
        return self.others_go_on and self.death not in (None, Death(exit_code=1))

    def ends_attempt(self, entry: PlannedFailure, config: RunConfig) -> bool:
        """Whether the attempt that `entry` strikes comes to its end by it."""
        del config
        return self.ends is not Ends.NOTHING and entry.moment != "rest"

    # Planning.

    def entries(self, config: RunConfig) -> tuple[Entry, ...]:
        """What failure=NAME with the other keys of the group plans."""
        return typed_entries(config.failure)

    def refuses(self, config: RunConfig) -> str | None:
        """Why it cannot strike any run of this configuration, or None."""
        del config
        return None

    def expand(self, entry: Entry, config: RunConfig) -> tuple[Entry, ...]:
        """The entries that a typed one stands for. RefusedFault where there can be none."""
        del config
        return (entry,)

    def wrong_point(self, point: str, config: RunConfig) -> str | None:
        """Why no save of this run can be struck at `point` of the store's protocol, or None. For kinds that strike a save."""
        del point, config
        return None

    def check(self, entry: PlannedFailure, config: RunConfig) -> None:
        """RefusedFault where a planned entry breaks a rule of its kind's own."""

    # Striking.

    def inject(self, context: InjectionContext) -> Any:
        """Do it, in the process that is struck: a rank, or whoever writes."""
        raise NotImplementedError(f"{self.name} is injected by no rank")

    def strike_save(self, save: SaveInProgress, context: InjectionContext) -> None:
        """Do it to a save, at its point: in the process that writes."""
        del save
        self.inject(context)

    def strike_at_rest(self, between: BetweenAttempts) -> Strike | None:
        """What the supervisor is to do between two attempts; None: it waits for a later one. For moment `rest`."""
        raise NotImplementedError(f"{self.name} does not strike at rest")

    # Judging.

    def trace(self, fault: RecordedFault) -> Iterable[Problem]:
        """What contradicts, in the records, that it did what it does, beside the end of its attempt and of its victim (verify/fault_effects.py)."""
        del fault
        return ()
