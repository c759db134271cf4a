"""One rank's process: connects to the supervisor, joins the group, loads, trains to the target,
records its final state.

`run_rank` in a process forked by the zygote or by torchrun's agent. Configuration and attempt
specification are read from the run directory.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ecrl_cli.config.codec import decode
from ecrl_cli.config.recoveries import recovery_of, survivors_stay
from ecrl_cli.errors import EcrlError, LossNotFinite, StorageError, first_line
from ecrl_cli.failures.injector import Injector
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.linux.processes import print_to
from ecrl_cli.records.journal import Journal, read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import (
    Assignment,
    AttemptSpec,
    Hello,
    LeftAttempt,
    Progress,
    RankError,
    SpareReady,
)
from ecrl_cli.records.run_config import read_run_config
from ecrl_cli.records.span_clock import SpanClock
from ecrl_cli.training.control_client import (
    Control,
    HeartbeatWriter,
    NullControl,
    answer_stack_dumps,
    silence_stack_dumps,
)
from ecrl_cli.training.rendezvous import Rendezvous, TcpStoreAddress

if TYPE_CHECKING:
    from ecrl_cli.training.in_place_session import CarriedState, InPlaceSession


@dataclass(frozen=True)
class RankAssignment:
    """A rank's place in an attempt. `started`: when its process began to work for it. `kept`: what
    the process carries from earlier attempts.
    """

    attempt: int
    rendezvous: Rendezvous
    started: float
    kept: CarriedState | None = None


def run_rank(run_dir: Path, attempt: int, rendezvous: Rendezvous, started: float) -> int:
    """Run a rank to its end; returns its exit code. Expected errors are reported to the supervisor
    in one line.
    """
    return _serve(RunLayout(run_dir), RankAssignment(attempt, rendezvous, started))


def run_spare(run_dir: Path, store: TcpStoreAddress, started: float) -> int:
    """Run a warm spare, which becomes a rank when it is needed; its time counts only from then on.
    Returns its exit code.
    """
    del started
    layout = RunLayout(run_dir)
    from ecrl_cli.training.in_place_session import warmed_up

    kept = warmed_up(read_run_config(layout).config, store)
    control = Control(layout, SpareReady(os.getpid()))
    try:
        assignment = control.assignment()
    finally:
        control.close()
    return _serve(layout, _next(layout, assignment, store, kept)) if assignment else 0


def _serve(layout: RunLayout, assignment: RankAssignment) -> int:
    """Take part in attempt after attempt; returns the exit code."""
    memory = answer_stack_dumps()
    try:
        following: RankAssignment | int = assignment
        while isinstance(following, RankAssignment):
            following = _take_part(layout, following, memory)
        return following
    finally:
        silence_stack_dumps(memory)


def _take_part(layout: RunLayout, assignment: RankAssignment, memory: int) -> RankAssignment | int:
    """Run one attempt; returns the next assignment if the rank survived others' deaths, else the
    exit code.
    """
    rank = assignment.rendezvous.rank
    hello = Hello(rank, os.getpid(), assignment.attempt, assignment.started, stacks=memory)
    control = Control(layout, hello) if assignment.rendezvous.attended else NullControl()
    try:
        departed = _train(layout, assignment, control)
        reassigned = control.leave(departed[0]) if departed else None
        return (
            _next(layout, reassigned, assignment.rendezvous.store, departed[1])
            if departed and reassigned
            else 0
        )
    except (EcrlError, OSError) as raised:
        if isinstance(raised, (ConnectionError, TimeoutError)):  # a peer's; a restart may help
            control.trouble(_unexpected(rank, raised))
            raise
        error = (
            raised
            if isinstance(raised, EcrlError)
            else StorageError.of("rank", raised.filename or layout.root, raised)
        )
        sys.stderr.write(f"ecrl: error: {error.line()}\n")
        control.trouble(
            RankError(
                rank,
                error.line(),
                error.exit_code,
                peers_corrupted=isinstance(error, LossNotFinite),
            )
        )
        return error.exit_code
    except Exception as error:
        control.trouble(_unexpected(rank, error))
        raise
    finally:
        control.close()


def _unexpected(rank: int, error: Exception) -> RankError:
    return RankError(rank, first_line(error, 500), 1)


def _train(
    layout: RunLayout, assignment: RankAssignment, control: Control
) -> tuple[LeftAttempt, CarriedState] | None:
    """Train one attempt; returns the message for the supervisor and the state to carry over if the
    attempt ended because peers died, else None.
    """
    logs, rank = layout.attempt(assignment.attempt), assignment.rendezvous.rank
    clock = SpanClock(
        Journal(logs.spans(rank)),
        assignment.attempt,
        assignment.started,
        "rendezvous" if assignment.kept else "import",
    )
    order = decode(AttemptSpec, read_json(logs.launch))
    control.attach()
    HeartbeatWriter(control.heartbeats, rank).phase("importing")
    Injector(layout, assignment.attempt, rank, order.pending).at_start("start", order)
    if rank == 0:
        control.progress(Progress(order.resume_step, "importing", monotonic()))
    config = read_run_config(layout).config
    if survivors_stay(config):
        # imports torch, which is timed separately and comes after the Hello
        from ecrl_cli.training.in_place_session import CarriedState

        assert assignment.rendezvous.store is not None, (
            "only ranks that share a store outlive others"
        )
        kept = assignment.kept or CarriedState(
            assignment.rendezvous.store, config.supervision.collective_timeout_s
        )
        session: InPlaceSession = recovery_of(config).load_session()(
            config, layout, order, assignment.rendezvous, clock, control
        )
        left = session.take_part(kept)
        return (left, kept) if left else None
    from ecrl_cli.training.session import RankSession

    RankSession(config, layout, order, assignment.rendezvous, clock, control).train()
    return None


def _next(
    layout: RunLayout, assignment: Assignment, store: TcpStoreAddress | None, kept: CarriedState
) -> RankAssignment:
    """The rank's next place, as the supervisor assigned it; redirects output to the log of that
    attempt.
    """
    assert store is not None
    logs = layout.attempt(assignment.attempt)
    print_to(logs.output)
    world_size = decode(AttemptSpec, read_json(logs.launch)).world_size
    place = Rendezvous(assignment.rank, world_size, replace(store, prefix=assignment.prefix))
    return RankAssignment(assignment.attempt, place, monotonic(), kept)
