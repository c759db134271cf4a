"""Failures outside the ranks: the supervisor is killed or told to stop, or the network between the
ranks goes down.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from itertools import pairwise

from ecrl_cli.config.elastic import ranks_at
from ecrl_cli.config.fault_spec import IN_STEP
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.failures.fault_kind import (
    BetweenAttempts,
    Ends,
    FaultKind,
    InjectionContext,
    PreparedFault,
    Problem,
    RecordedFault,
    RefusedFault,
    Victim,
    how_it_ended,
)
from ecrl_cli.failures.rank_faults import HANG_IS_FOUND
from ecrl_cli.history.membership import was_stopped
from ecrl_cli.linux import processes
from ecrl_cli.linux.namespaces import set_loopback
from ecrl_cli.records.events import PlannedFailure


class KilledSupervisor(FaultKind):
    """All its processes die with it; a new supervisor (runs/supervisor_restarter.py) cleans up and
    resumes the run.
    """

    name = "supervisor"
    description = (
        "SIGKILL of the supervisor at a step boundary: everything goes down with it, and a new one"
        " goes on"
    )
    shows = "no process is left alive, and the run goes on exactly"
    text = "is killed by SIGKILL"
    moments = (*IN_STEP, "capture", "load", "rest", "wall")
    victim = Victim.SUPERVISOR
    sends = signal.SIGKILL
    ends = Ends.ATTEMPT
    supervisor_exit = -signal.SIGKILL

    @property
    def may_cut_update(self) -> bool:
        return True  # the kernel kills the ranks

    def refuses(self, config: RunConfig) -> str | None:
        return (
            "kind supervisor is injected by a rank beside it, supervision.nodes > 1"
            if config.supervision.nodes > 1
            else None
        )

    def inject(self, context: InjectionContext) -> None:
        """Called in a rank. Does not return: the kernel kills the rank with its supervisor
        (pdeathsig).
        """
        del context
        processes.send(supervisor_pid(), signal.SIGKILL)
        while True:
            signal.pause()

    def inject_at_rest(self, between: BetweenAttempts) -> PreparedFault:
        del between
        return PreparedFault("", lambda: os.kill(os.getpid(), signal.SIGKILL))

    def trace(self, fault: RecordedFault) -> Iterable[Problem]:
        """Between two attempts: the killed supervisor session has no end, and the next session
        began after the failure.
        """
        at = fault.fired.at
        ended = any(
            one.ended_at is None and one.started_at <= at <= after.started_at
            for one, after in pairwise(fault.run.sessions)
        )
        if fault.planned.moment == "rest" and fault.completed and not ended:
            yield Problem(f"entry {fault.fired.index} hit the supervisor, and its session went on")


class Term(FaultKind):
    """Preemption as by Slurm and Kubernetes."""

    name = "term"
    description = (
        "SIGTERM to the supervisor, as a scheduler preempts: a last checkpoint within"
        " `supervision.grace_s`, a clean end, the run goes on"
    )
    shows = "the run ends with code 143 and a last checkpoint, and goes on exactly"
    text = "is told to stop by SIGTERM"
    moments = ("boundary", "forward", "backward", "load", "wall")
    victim = Victim.SUPERVISOR
    sends = signal.SIGTERM
    ends = Ends.ATTEMPT
    supervisor_exit = 128 + signal.SIGTERM
    graceful = True

    def refuses(self, config: RunConfig) -> str | None:
        if config.supervision.nodes > 1:
            return "kind term is injected by a rank beside the supervisor, supervision.nodes > 1"
        return (
            "kind term ends in a last checkpoint, checkpoint=none takes none"
            if not strategy_of(config).saves
            else None
        )

    def inject(self, context: InjectionContext) -> None:
        del context
        processes.send(supervisor_pid(), signal.SIGTERM)

    def trace(self, fault: RecordedFault) -> Iterable[Problem]:
        """The supervisor received the signal, and the attempt was stopped by it unless it ended
        before.
        """
        a = fault.attempt
        if a is None:
            return
        who, session = (
            f"entry {fault.fired.index} told the supervisor to stop",
            fault.run.session_of(a),
        )
        if (
            session
            and session.signals is not None
            and signal.SIGTERM not in session.signals
            and not fault.cut_short
        ):
            yield Problem(
                f"{who} in attempt {a.attempt}, and its session received"
                f" {list(session.signals) or 'no signal'}"
            )
        if not was_stopped(fault.run.attempts, a) and not fault.explained:
            yield Problem(f"{who} in attempt {a.attempt}, which {a.outcome}: {how_it_ended(a)}")
        elif (
            a.outcome == "completed"
            and session
            and session.signals is None
            and session.ended_at is not None
        ):
            yield Problem(
                f"{who} in attempt {a.attempt}, which completed, and whether the signal came is on"
                " no record",
                proven=False,
            )


class Partition(FaultKind):
    """Each attempt runs in its own network namespace, whose only device is taken down."""

    name = "partition"
    description = (
        "the network between the ranks goes down (each attempt runs in a network namespace of its"
        " own)"
    )
    shows = HANG_IS_FOUND
    text = "loses the network to all others"
    moments = ("boundary", "forward", "backward", "load")
    needs_network = True
    ends = Ends.ATTEMPT
    hangs = True
    stalls_exchange = True

    def refuses(self, config: RunConfig) -> str | None:
        if config.supervision.nodes > 1:
            return "kind partition needs all ranks on one machine, supervision.nodes > 1"
        return (
            None
            if config.world_size > 1
            else "kind partition needs two ranks to part, world_size is 1"
        )

    def check(self, entry: PlannedFailure, config: RunConfig) -> None:
        if (there := ranks_at(config, entry.global_step)) < 2:
            fact = f"partition needs two ranks to part, {there} there at step {entry.global_step}"
            raise RefusedFault("kind", fact, "inject where there are more")

    def inject(self, context: InjectionContext) -> None:
        del context
        set_loopback(up=False)


def supervisor_pid() -> int:
    """The pid of the supervisor of this rank's attempt."""
    return int(os.environ["ECRL_SUPERVISOR"])
