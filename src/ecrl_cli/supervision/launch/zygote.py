"""A launcher whose ranks are forked from a warm process that has imported torch: a launch takes a
fraction of a second.

The zygote lives as long as the command and serves one run after another. It never trains and has no
threads; the TCPStore for the ranks' rendezvous is in a process of its own. Ranks are forked twice,
so that they become children of the supervisor, which alone reaps them.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from ecrl_cli import models
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.data import datasets
from ecrl_cli.failures.plan import plan
from ecrl_cli.linux import processes
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.linux.namespaces import private_command
from ecrl_cli.linux.pdeathsig import with_pdeathsig
from ecrl_cli.supervision.launch.child_environment import child_environment
from ecrl_cli.supervision.launch.launcher import (
    WORKER,
    LaunchSpec,
    RankExit,
    RankExits,
    RankTable,
    needs_private_network,
)

MESSAGE_BYTES = 65536
_STOPPED = ("T", "t")  # states in /proc: stopped, traced
_USELESS = (*_STOPPED, "Z", "X", "")  # dead, gone
_LOOK_S = 1.0  # between two looks at a zygote that imports: one that stands at both is stopped


def preload(config: RunConfig) -> tuple[str, ...]:
    """The heavy modules that the ranks of `config` import besides torch."""
    own = (
        models.REGISTRY.builtin.get(config.model.name, ""),
        datasets.REGISTRY.builtin.get(config.dataset.name, ""),
    )
    # a module of another package may start threads, which no fork survives
    modules = (path.partition(":")[0] for path in own if path)
    # DDP's constructor imports torch._dynamo
    return tuple(dict.fromkeys((WORKER, "ecrl_cli.training.session", "torch._dynamo", *modules)))


class ZygoteProcess:
    """The zygote process and the socket to it."""

    def __init__(self, modules: tuple[str, ...], private_network: bool = False) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.setblocking(False)
        self._output = os.memfd_create("zygote-output")
        command = with_pdeathsig(
            [
                sys.executable,
                "-m",
                "ecrl_cli.supervision.launch.zygote_main",
                str(theirs.fileno()),
                *modules,
            ],
            deaf=True,
        )
        self.process = subprocess.Popen(
            private_command(command) if private_network else command,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            env=child_environment(None, 1),
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
        self.pidfd = os.pidfd_open(self.process.pid)
        self._inbox: list[dict[str, Any]] = []
        self._store: int | None = None  # the pid of the process that hosts the store, once known
        theirs.close()

    def ask(self, request: dict[str, Any]) -> None:
        try:
            self.socket.send(json.dumps(request).encode())
        except OSError:
            return  # it has died: `over` is true

    def messages(self, about: str) -> list[dict[str, Any]]:
        """The received messages that have the key `about`; the others are kept for later calls."""
        try:
            while data := self.socket.recv(MESSAGE_BYTES):
                self._inbox.append(json.loads(data))
        except (BlockingIOError, ConnectionResetError):
            pass
        found = [message for message in self._inbox if about in message]
        self._inbox = [message for message in self._inbox if about not in message]
        return found

    def warm(self, modules: tuple[str, ...], seconds: float) -> bool:
        """Wait until it has imported `modules` or has died, so that this time is not part of any
        run; whether it did within `seconds`. False at once if it or its store stands stopped.
        """
        self.ask({"preload": modules})
        until, stood = monotonic() + seconds, False
        while not (answers := self.messages("warm")) and not self.over():
            stands = any(processes.state(pid) in _STOPPED for pid in self._own_pids())
            if (stands and stood) or monotonic() > until:
                return False
            stood = stands
            select.select([self.socket.fileno(), self.pidfd], [], [], _LOOK_S)
        for answer in answers:
            self._store = answer["store"]
        return True

    def _own_pids(self) -> list[int]:
        """Its pid, and that of its store, which it forks before anything else."""
        pid = self.process.pid
        try:
            forked = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
        except OSError:  # it has died, or the kernel does not tell
            forked = []
        return [pid, *map(int, forked[:1])]

    def over(self) -> bool:
        return processes.ended(self.pidfd)

    def serves(self) -> bool:
        """Whether it can serve an attempt: neither it nor its store has died or is stopped."""
        pids = [self.process.pid, *([] if self._store is None else [self._store])]
        return not self.over() and not any(processes.state(pid) in _USELESS for pid in pids)

    def said(self) -> bytes:
        """The zygote's output: the reason if it could not start."""
        return os.pread(self._output, MESSAGE_BYTES, 0)

    def kill(self) -> None:
        """SIGKILL its process group, which includes everything it forked. The group id cannot be
        reused before the zygote has been reaped.
        """
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> int:
        """Kill it, wait, reap its orphans; returns the exit code (negative: the signal)."""
        self.kill()
        code = self.process.wait()
        processes.reap_group(self.process.pid)
        return code

    def close(self) -> None:
        self.end()
        self.socket.close()
        os.close(self.pidfd)
        os.close(self._output)


class ZygoteLauncher:
    """Starts its zygote at once, so that it imports while the supervisor still prepares, and again
    if it has died.

    A zygote with a private network serves one attempt only: the next attempt gets a new network,
    whatever was done to the old one.
    """

    def __init__(self, modules: tuple[str, ...] = (), private_network: bool = False) -> None:
        processes.become_subreaper()
        self._modules, self._private, self._served = modules, private_network, False
        self._zygote: ZygoteProcess | None = ZygoteProcess(modules, private_network)

    @classmethod
    def make(cls, config: RunConfig) -> Self:
        """Preloads what the ranks of `config` import, in a private network if the plan has a
        partition.
        """
        return cls(preload(config), needs_private_network(plan(config)))

    def warm(self, config: RunConfig) -> None:
        self._discard()
        for _ in range(2):  # a second one that is stopped as well is found by its attempt's hang
            if self._living().warm(preload(config), config.supervision.start_timeout_s):
                return
            self.close()

    def launch(self, spec: LaunchSpec) -> ZygoteAttempt:
        if not spec.existing_pids:  # surviving ranks need the store of the zygote that forked them
            self._discard()
            if self._zygote is not None and not self._zygote.serves():
                self.close()
        self._served = True
        return ZygoteAttempt(spec, self._living())

    def _discard(self) -> None:
        """Close a zygote with a private network that has had its one attempt."""
        if self._private and self._served:
            self.close()
            self._served = False

    def _living(self) -> ZygoteProcess:
        if self._zygote is None or self._zygote.over():
            self.close()
            self._zygote = ZygoteProcess(self._modules, self._private)
        return self._zygote

    def close(self) -> None:
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None


class ZygoteAttempt:
    """Ranks forked for this attempt, or `spec.existing_pids`: survivors of an earlier one, and
    spares.
    """

    def __init__(self, spec: LaunchSpec, zygote: ZygoteProcess) -> None:
        self.spec, self.zygote, self._ranks = spec, zygote, RankTable()
        self.orphaned = False
        self.prefix = f"attempt{spec.order.attempt}-{secrets.token_hex(8)}"
        for rank, pid in enumerate(spec.existing_pids):
            self._ranks.add(rank, pid)
        self._forked = bool(spec.existing_pids)
        if not self._forked:
            zygote.ask(
                {
                    "module": spec.module,
                    "run_dir": str(spec.layout.root),
                    "attempt": spec.order.attempt,
                    "world_size": spec.order.world_size,
                    "prefix": self.prefix,
                    "preload": spec.preload,
                    "output": spec.output,
                }
            )

    def watched(self) -> list[int]:
        zygote = [] if self.orphaned else [self.zygote.pidfd]
        return (
            self._ranks.watched()
            + zygote
            + ([] if self._forked or self.orphaned else [self.zygote.socket.fileno()])
        )

    def introduce(self, rank: int, pid: int) -> None:
        """Nothing to do: the zygote has reported the pids."""

    def pids(self) -> dict[int, int]:
        # a dead rank's pid may have been reused
        return {rank.rank: rank.pid for rank in self._ranks.known.values() if not rank.over}

    def check(self) -> bool:
        self._hear()
        over = self._ranks.newly_over()
        for rank in over:
            rank.status = processes.reap(rank.pid)
        self._ranks.notice([rank.exit() for rank in over if rank.status != 0])
        if not self.orphaned and self.zygote.over():
            self._notice_zygote()
        return self._ranks.first is not None or (self._forked and not self._ranks.watched())

    def kill(self) -> None:
        """Kills the zygote too if it has not reported the ranks' pids yet."""
        if self._ranks.closed:
            return  # by now the zygote serves another attempt
        self._hear()
        if not self._forked:
            self.zygote.kill()
        self._ranks.kill()

    def reap(self) -> RankExits:
        if self._ranks.closed:
            return self._ranks.exits()
        self.kill()
        self._ranks.gather()
        # it may be killed but not dead yet: wait, so that the next launch does not use it
        if not self._forked or self.zygote.over():
            self.zygote.end()
        return self._ranks.exits()

    @property
    def living(self) -> frozenset[int] | None:
        """The ranks that had not ended at the last `check`; None while the zygote has not reported
        their pids.
        """
        return (
            frozenset(rank.rank for rank in self._ranks.known.values() if not rank.over)
            if self._forked
            else None
        )

    @property
    def dead(self) -> frozenset[int]:
        """The ranks known at the last `check` to have failed."""
        return self._ranks.dead()

    def release(self) -> RankExits:
        """Instead of `reap`: stop watching the living ranks, which another owner watches from now
        on.
        """
        self._ranks.release()
        return self._ranks.exits()

    def _hear(self) -> None:
        for message in self.zygote.messages("prefix"):
            if message["prefix"] == self.prefix:
                self._forked = True
                for rank, pid in enumerate(message["pids"]):
                    self._ranks.add(rank, pid)

    def _notice_zygote(self) -> None:
        self.orphaned = True
        code = self.zygote.end()
        with open(self.spec.output, "ab", buffering=0) as output:
            output.write(self.zygote.said())
        exit_code, number = (None, -code) if code < 0 else (code, None)
        self._ranks.notice([RankExit(None, self.zygote.process.pid, exit_code, number)])
