"""Failures of a rank: it exits, is killed, raises, hangs, computes NaN, or is slow."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from ecrl_cli.config.fault_spec import IN_STEP, STARTING, Entry
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.failures.fault_kind import (
    Death,
    Ends,
    FaultKind,
    InjectionContext,
    Problem,
    RecordedFault,
    RefusedFault,
    Victim,
)
from ecrl_cli.linux import processes
from ecrl_cli.records.events import PlannedFailure

HANG_IS_FOUND = (
    "a hang is found from the ranks' progress, the rank to blame named, all stacks kept, the job"
    " restarted"
)
SLOWNESS_IS_REPORTED = "slowness is reported, not killed, and changes no bit"
_EXACT = "recovery is exact wherever in a step a rank dies"
_NAMED = "the error is named; what it made of the state is neither logged nor saved"
ASKED = 2**34  # bytes; more than is ever allocated
_SPARE = 2**26  # bytes that the process may still allocate: enough to report the error


class Exit(FaultKind):
    """The published protocol: a clean exit after a barrier and a flush."""

    name = "exit"
    description = (
        "rank 0 exits with code 137 after the final barrier of a step and a flush: the published"
        " protocol"
    )
    shows = _EXACT
    text = "exits with code 137 after a flush"
    moments = (*IN_STEP, "capture", *STARTING)
    victim = Victim.RANK_0
    flushes = True
    death = Death(exit_code=137)

    def inject(self, context: InjectionContext) -> NoReturn:
        del context
        os._exit(137)


class Kill(FaultKind):
    name = "kill"
    description = (
        "SIGKILL of `failure.rank` after a step, without a flush or a barrier; of all ranks or a"
        " node with `failure.who`"
    )
    shows = _EXACT
    text = "is killed by SIGKILL, without a flush"
    moments: tuple[str, ...] = (*IN_STEP, "capture", *STARTING, "wall")
    victim = Victim.RANKS
    sends = signal.SIGKILL
    death = Death(signal=signal.SIGKILL)

    def inject(self, context: InjectionContext) -> NoReturn:
        to_victims(context, signal.SIGKILL)
        raise AssertionError("survived SIGKILL")


class Backward(Kill):
    """An alias of `kill` at moment `backward`; plans contain the kill."""

    name = "backward"
    description = (
        "SIGKILL of `failure.rank` inside backward, after `failure.share` of its gradients have"
        " been accumulated"
    )
    moments = ("backward",)

    def expand(self, entry: Entry, config: RunConfig) -> tuple[Entry, ...]:
        if entry.moment not in ("", "backward"):
            raise RefusedFault(
                "moment", f"backward is a moment of its own, got {entry.moment}", "use kill"
            )
        return (replace(entry, what=Kill.name, moment="backward"),)


class PlannedError(RuntimeError):
    """Raised on purpose by failure=raise."""


class Raise(FaultKind):
    name = "raise"
    description = "an exception in the code of `failure.rank`, in forward"
    shows = _NAMED
    text = "raises an exception"
    moments = ("forward", "boundary", "backward", "optimizer", "capture", *STARTING)
    death = Death(exit_code=1)

    def inject(self, context: InjectionContext) -> NoReturn:
        raise PlannedError(f"planned failure {context.entry.index + 1}")


class OutOfMemory(FaultKind):
    name = "oom"
    description = "`failure.rank` runs out of memory: an allocation that really fails"
    shows = _NAMED
    text = "runs out of memory"
    moments = ("forward", "backward", "load")
    death = Death(exit_code=1)

    def inject(self, context: InjectionContext) -> None:
        """Raises the allocator's error; the limit is then removed, so that the rank can report
        it.
        """
        del context
        # Imported here, in the rank: the plan is made by a supervisor without torch.
        import torch

        if torch.cuda.memory_allocated():
            _exhaust_device()
            return
        before = resource.getrlimit(resource.RLIMIT_AS)
        size = (
            int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
            * resource.getpagesize()
        )
        resource.setrlimit(resource.RLIMIT_AS, (size + _SPARE, before[1]))
        try:
            torch.empty(ASKED, dtype=torch.uint8)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)


def _exhaust_device() -> None:
    import torch

    free, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(0.0)
    try:
        torch.empty(max(free, total), dtype=torch.uint8, device="cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


class NotANumber(FaultKind):
    """NaN reaches every rank with the gradients: none can continue."""

    name = "nan"
    description = "the loss of `failure.rank` is NaN: refused before the step is logged or saved"
    shows = _NAMED
    text = "computes a NaN loss"
    moments = ("forward",)
    share = 1.0  # the output of the whole model
    takes_share = False
    replaces_output = True
    ends = Ends.ATTEMPT
    death = Death(exit_code=1)

    def inject(self, context: InjectionContext) -> Any:
        return context.output * float("nan")


class Stop(FaultKind):
    name = "stop"
    description = (
        "SIGSTOP of `failure.rank`: it hangs without exiting; only a progress timeout finds it"
    )
    shows = HANG_IS_FOUND
    text = "is stopped by SIGSTOP and hangs"
    moments = (*IN_STEP, "capture", *STARTING, "wall")
    victim = Victim.RANKS
    sends = signal.SIGSTOP
    ends = Ends.ATTEMPT
    hangs = True

    def inject(self, context: InjectionContext) -> None:
        """Never returns: a rank that is resumed to dump its stacks must not continue training."""
        to_victims(context, signal.SIGSTOP)
        while True:
            signal.pause()


class SlowRank(FaultKind):
    name = "slow_rank"
    description = (
        "`failure.rank` takes `failure.seconds` longer over each of ten steps: reported, not killed"
    )
    shows = SLOWNESS_IS_REPORTED
    text = "takes {seconds:g} s longer over each of 10 steps"
    moments = ("forward",)
    seconds = 0.05
    lasts = 10
    ends = Ends.NOTHING

    def check(self, entry: PlannedFailure, config: RunConfig) -> None:
        limit = config.supervision.hang_timeout_s
        if entry.seconds >= limit:
            fact = (
                f"{entry.seconds:g} s per step would be a hang: supervision.hang_timeout_s is"
                f" {limit:g}"
            )
            raise RefusedFault("seconds", fact, "lower the seconds or raise the timeout")

    def inject(self, context: InjectionContext) -> None:
        time.sleep(context.entry.seconds)

    def trace(self, fault: RecordedFault) -> Iterable[Problem]:
        """Each logged step of those slowed down must have taken at least the injected delay."""
        fired, entry = fault.fired, fault.planned
        lines = fault.run.logs(fired.attempt).ranks.get(fired.rank)
        first = fired.global_step if fired.at_step is None else fired.at_step
        last = first if fired.at_step is None else entry.global_step + self.lasts - 1
        took = (
            {
                line.global_step: line.seconds
                for line in lines.events
                if first <= line.global_step <= last
            }
            if lines
            else {}
        )
        if lines and first not in took and any(line.global_step > first for line in lines.events):
            yield Problem(
                f"entry {fired.index} held rank {fired.rank} up in step {first}, of which its log"
                " has no line",
                proven=False,
            )
        for step, seconds in took.items():
            if seconds < entry.seconds:
                yield Problem(
                    f"entry {fired.index} held rank {fired.rank} up for {entry.seconds:g} s in step"
                    f" {step}, which took {seconds:.3f} s"
                )


def to_victims(context: InjectionContext, number: int) -> None:
    """Sends signal `number` to the other victims, to their agent if the whole node is hit, and to
    this process last.
    """
    others = [context.peers[rank] for rank in context.entry.others if rank in context.peers]
    for pid in [*others, *([os.getppid()] if context.entry.node else [])]:
        processes.send(pid, number)
    os.kill(os.getpid(), number)
