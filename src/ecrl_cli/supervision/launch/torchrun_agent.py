"""What single-node and multi-node attempts under torch.distributed.run share: the agent process, and parsing the failure that it prints."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from ecrl_cli.linux import processes
from ecrl_cli.linux.namespaces import private_command
from ecrl_cli.linux.pdeathsig import mortal_command
from ecrl_cli.supervision.launch.child_environment import child_environment
from ecrl_cli.supervision.launch.launcher import LaunchSpec, RankExit, RankTable

AGENT = "ecrl_cli.supervision.launch.torchrun_main"
_ROOT_CAUSE = re.compile(r"Root Cause \(first observed failure\):\s*\[\d+\]:(.*?)(?:={8,}|\Z)", re.DOTALL)


def root_cause(output: str) -> str:
    """The root-cause section of the agent's failure table; empty if it printed none."""
    found = _ROOT_CAUSE.search(output)
    return found[1] if found else ""


def as_exit(rank: int | None, pid: int, code: int) -> RankExit:
    """RankExit from a return code as in subprocess: -9 is signal 9."""
    return RankExit(rank, pid, None, -code) if code < 0 else RankExit(rank, pid, code, None)


class AgentAttempt:
    """`_agent`: the process that the supervisor starts and watches: the agent itself, or the srun that starts one on each node.

    `deaf`: whether it and its ranks ignore SIGTERM, SIGINT and SIGHUP.
    """

    deaf = True

    def __init__(
        self, spec: LaunchSpec, command: Callable[[LaunchSpec, str, Path], list[str]], stdin: int, known: Mapping[str, str] | None = None
    ) -> None:
        self._spec, self._ranks = spec, RankTable()
        self._meeting = f"ecrl-{secrets.token_hex(8)}"
        self._scratch = Path(spec.output).with_name(".torchelastic")
        launched = mortal_command(command(spec, self._meeting, self._scratch), deaf=self.deaf)
        with open(spec.output, "ab", buffering=0) as output:
            self._agent = subprocess.Popen(
                private_command(launched) if spec.private_network else launched,
                stdin=stdin,
                stdout=output,
                stderr=output,
                env=child_environment(spec.layout.root, spec.threads, alone=not spec.nodes) | dict(known or {}),
                start_new_session=True,
            )
        self._agent_fd = os.pidfd_open(self._agent.pid)
        self._agent_over = False

    def watched(self) -> list[int]:
        return self._ranks.watched() + ([] if self._agent_over else [self._agent_fd])

    def introduce(self, rank: int, pid: int) -> None:
        self._ranks.add(rank, pid)

    def pids(self) -> dict[int, int]:
        return {rank.rank: rank.pid for rank in self._ranks.known.values() if not rank.over}

    def _ended_well(self) -> None:
        """The agent ended with code 0: so did every rank whose status is unknown."""
        for rank in self._ranks.known.values():
            rank.status = 0 if rank.status is None else rank.status

    def _leave_nothing(self) -> None:
        """After the agent has been reaped: reap its ranks, kill those that had not sent Hello yet, remove temporary files."""
        self._ranks.gather()
        processes.sweep(processes.tagged(f"TORCHELASTIC_RUN_ID={self._meeting}"))
        os.close(self._agent_fd)
        shutil.rmtree(self._scratch, ignore_errors=True)
