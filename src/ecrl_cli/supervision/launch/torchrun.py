"""The default launcher: torch.distributed.run (see `torchrun_main`), once per attempt, which never restarts anything itself.

Its agent polls its workers ten times a second and then needs up to half a minute to stop the survivors. So the supervisor watches
the workers itself (each says hello with its pid) and kills the agent as soon as one has died badly: the kernel then kills the survivors
(parent-death signal) and hands all of them, the dead one included, to the supervisor, which learns from each how it ended.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Self

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.linux import processes
from ecrl_cli.supervision.launch.launcher import LaunchSpec, RankExit, RankExits, RankProcess, RunningAttempt
from ecrl_cli.supervision.launch.multi_node import NodesAttempt
from ecrl_cli.supervision.launch.torchrun_agent import AGENT, AgentAttempt, as_exit, root_cause

_FAILED_RANK = re.compile(r"rank\s*: (\d+) .*?exitcode\s*: (-?\d+) \(pid: (\d+)\)", re.DOTALL)


class TorchrunLauncher:
    @classmethod
    def make(cls, config: RunConfig) -> Self:
        return cls()

    def __init__(self) -> None:
        processes.become_subreaper()

    def warm(self, config: RunConfig) -> None:
        """Every launch starts cold."""

    def launch(self, spec: LaunchSpec) -> RunningAttempt:
        return NodesAttempt(spec) if spec.nodes else TorchrunAttempt(spec)

    def close(self) -> None:
        """Nothing outlives an attempt."""


class TorchrunAttempt(AgentAttempt):
    def __init__(self, spec: LaunchSpec) -> None:
        super().__init__(spec, command, subprocess.DEVNULL)

    def check(self) -> bool:
        for rank in self._ranks.newly_over():
            # None: the agent was faster. It knows, and its own end, or its table of failures, will tell.
            rank.status = processes.peek(rank.pid, rank.pidfd)
        self._ranks.notice([r.exit() for r in self._ranks.known.values() if _bad(r)])
        if not self._agent_over and processes.ended(self._agent_fd):
            self._agent_over = True
            self._notice_agent()
        return self._agent_over or self._ranks.first is not None or self._all_ended_well()

    def kill(self) -> None:
        if self._ranks.closed:
            return
        processes.kill(self._agent_fd)
        self._ranks.kill()

    def reap(self) -> RankExits:
        """Reaping the agent first matters: only then are its workers our children, and known to be all of them."""
        if self._ranks.closed:
            return self._ranks.exits()
        self.kill()
        self._agent.wait()
        self._leave_nothing()
        return self._ranks.exits()

    def _all_ended_well(self) -> bool:
        """Then the agent, which would take most of a second to notice and leave, is not needed any more."""
        ranks = self._ranks.known.values()
        return len(ranks) == self._spec.order.world_size and all(rank.over and rank.status == 0 for rank in ranks)

    def _notice_agent(self) -> None:
        """The agent has ended before any rank was seen to end badly."""
        code = self._agent.wait()
        if code == 0:
            self._ended_well()
            return
        table = first_failure(Path(self._spec.output).read_text(encoding="utf-8", errors="replace"))
        self._ranks.notice([table or as_exit(None, self._agent.pid, code)])


def command(spec: LaunchSpec, meeting: str, scratch: Path) -> list[str]:
    """The agent's argv. The store takes a free port itself (0), so that nothing can take it in between; `scratch` keeps torchrun out of /tmp."""
    agent = f"--nnodes 1 --nproc-per-node {spec.order.world_size} --max-restarts 0 --rdzv-backend ecrl --local-addr 127.0.0.1".split()
    agent += ["--signals-to-handle", "SIGQUIT"]  # its own list would undo that it is deaf
    where = ["--rdzv-id", meeting, "--rdzv-endpoint", f"127.0.0.1:{spec.port}", "--log-dir", str(scratch)]
    worker = ["-m", spec.module, str(spec.layout.root), str(spec.order.attempt)]
    return [sys.executable, "-m", AGENT, *agent, *where, *worker]


def first_failure(output: str) -> RankExit | None:
    """The root cause that torchrun printed: the fallback where it reaped a rank before the supervisor could look."""
    found = _FAILED_RANK.search(root_cause(output))
    return as_exit(int(found[1]), int(found[3]), int(found[2])) if found else None


def _bad(rank: RankProcess) -> bool:
    return rank.over and rank.status not in (None, 0)
