"""The supervisor's handle on the background writer: a child process that lives across attempts and
can be replaced.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from contextlib import closing

from ecrl_cli.checkpoint.writer.protocol import Channel
from ecrl_cli.linux import processes
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.linux.pdeathsig import with_pdeathsig
from ecrl_cli.linux.unix_socket import connect, listen
from ecrl_cli.records.events import WRITERS_PER_ATTEMPT
from ecrl_cli.records.heartbeat_table import HeartbeatTable
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.supervision.attempts.stop_signals import StopSignals
from ecrl_cli.supervision.launch.child_environment import child_environment
from ecrl_cli.supervision.launch.launcher import GONE_WITHIN_S

WRITER = "ecrl_cli.supervision.launch.writer_main"
_DYING_S = 1.0
# times per attempt: if the writer keeps dying, its saves are recorded as failed
REPLACED_AT_MOST = WRITERS_PER_ATTEMPT - 1


class WriterProcess:
    """The background writer's process: started on demand, replaced when it dies."""

    def __init__(self, layout: RunLayout, board: HeartbeatTable | None = None) -> None:
        self._layout, self._board = layout, board
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._spare = 0
        self.deaths = 0  # writers that ended before the supervisor ended them

    @property
    def pids(self) -> tuple[int, ...]:
        return (self._process.pid,) if self._process else ()

    def start(self) -> None:
        """Make sure that the writer runs, for a new attempt. Ranks may connect when this
        returns.
        """
        self._spare = REPLACED_AT_MOST
        if self._process is None or processes.ended(self._pidfd):
            self._replace()

    def watched(self) -> tuple[int, ...]:
        """A descriptor that becomes readable when the writer has died."""
        return (self._pidfd,) if self._process else ()

    def check(self) -> bool:
        """Whether the writer has died; replaces it if so. Ranks connect to the new one at their
        next checkpoint.
        """
        if self._process is None or not processes.ended(self._pidfd):
            return False
        self._spare -= 1
        if self._spare >= 0:
            self._replace()
        else:
            self.kill()
        return True

    def give_up(self) -> None:
        """Kill the writer; the next `check` replaces it."""
        if self._process:
            processes.kill(self._pidfd)

    def drain(self, seconds: float, stop: StopSignals) -> None:
        """Wait until every checkpoint that it received has ended; at most `seconds`, and only until
        the next stop signal.

        A writer that is not done by then is killed, so that no checkpoint of an old attempt appears
        while the next one runs.
        """
        if self._process and not self._drained(monotonic() + seconds, stop):
            self.kill()

    def close(self) -> None:
        """Kill the writer and remove its socket. Call `drain` first if checkpoints may be in
        flight.
        """
        self.kill()
        self._layout.writer.unlink(missing_ok=True)

    def kill(self) -> None:
        if self._process:
            self.deaths += processes.ended(self._pidfd)
            processes.kill(self._pidfd)
            # else stuck in the kernel: fencing keeps it from committing
            if not processes.wait_all([self._pidfd], GONE_WITHIN_S):
                self._process.wait()
            os.close(self._pidfd)
            self._process = None

    def _replace(self) -> None:
        self.kill()
        if self._board:
            self._board.write(self._board.writer, 0, "done")  # resets the dead writer's phase
        self._layout.logs.mkdir(exist_ok=True)
        with (
            listen(self._layout.writer) as listener,
            self._layout.writer_output.open("ab", buffering=0) as log,
        ):
            fds = (listener.fileno(), *((self._board.fd,) if self._board else ()))
            command = [sys.executable, "-m", WRITER, str(self._layout.root), *map(str, fds)]
            self._process = subprocess.Popen(
                with_pdeathsig(command, deaf=True),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=child_environment(self._layout.root, 1),
                pass_fds=fds,
                start_new_session=True,
            )
        self._pidfd = os.pidfd_open(self._process.pid)

    def _drained(self, deadline: float, stop: StopSignals) -> bool:
        """Send a drain request and wait for the reply on a connection of its own. End of file means
        that the writer has died.
        """
        signals = len(stop.received())
        try:
            with closing(Channel(connect(self._layout.writer))) as channel:
                channel.send({"kind": "drain"})
                while (left := deadline - monotonic()) > 0 and len(stop.received()) == signals:
                    ready, _, _ = select.select(
                        [channel.socket.fileno(), stop.fileno()], [], [], left
                    )
                    if channel.socket.fileno() in ready:
                        return bool(channel.receive(wait=True)) or self._dying()
        except OSError:
            return self._dying()
        return False

    def _dying(self) -> bool:
        """Its sockets are closed, which happens just before a process has ended: wait for the end,
        so that `kill` counts this death as the writer's own.
        """
        processes.wait_all([self._pidfd], _DYING_S)
        return False
