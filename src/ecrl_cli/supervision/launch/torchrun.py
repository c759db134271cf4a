"""The default launcher: torch.distributed.run (see `torchrun_main`), once per attempt, without its own restarts.

torchrun's agent polls its workers ten times a second and then needs up to half a minute to stop the survivors. So the supervisor watches the
workers itself (each sends Hello with its pid) and kills the agent as soon as one has failed. The kernel then kills the survivors (parent-death
signal), and all workers become children of the supervisor, which reaps them and learns how each ended.
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
        """Nothing to do: every launch starts cold."""

    def launch(self, spec: LaunchSpec) -> RunningAttempt:
        return NodesAttempt(spec) if spec.nodes else TorchrunAttempt(spec)

    def close(self) -> None:
        """Nothing to do: no process lives longer than an attempt."""


class TorchrunAttempt(AgentAttempt):
    def __init__(self, spec: LaunchSpec) -> None:
        super().__init__(spec, command, subprocess.DEVNULL)

    def check(self) -> bool:
        for rank in self._ranks.newly_over():
            # None: the agent has reaped it. Then the agent's exit code or its table of failures tells how it ended.
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
        """Reaps the agent first: only then are all its workers children of this process."""
        if self._ranks.closed:
            return self._ranks.exits()
        self.kill()
        self._agent.wait()
        self._leave_nothing()
        return self._ranks.exits()

    def _all_ended_well(self) -> bool:
        """If so, the attempt is over at once: the agent itself would take most of a second to notice and exit."""
        ranks = self._ranks.known.values()
        return len(ranks) == self._spec.order.world_size and all(rank.over and rank.status == 0 for rank in ranks)

    def _notice_agent(self) -> None:
        """The agent ended before any rank was seen to fail."""
        code = self._agent.wait()
        if code == 0:
            self._ended_well()
            return
        table = first_failure(Path(self._spec.output).read_text(encoding="utf-8", errors="replace"))
        self._ranks.notice([table or as_exit(None, self._agent.pid, code)])


def command(spec: LaunchSpec, run_id: str, scratch: Path) -> list[str]:
    """The agent's argv. The store binds a free port itself (0), so that nothing else can take it; `scratch` keeps torchrun's logs out of /tmp."""
    agent = f"--nnodes 1 --nproc-per-node {spec.order.world_size} --max-restarts 0 --rdzv-backend ecrl --local-addr 127.0.0.1".split()
    agent += ["--signals-to-handle", "SIGQUIT"]  # its default list would handle the signals that it is started to ignore
    where = ["--rdzv-id", run_id, "--rdzv-endpoint", f"127.0.0.1:{spec.port}", "--log-dir", str(scratch)]
    worker = ["-m", spec.module, str(spec.layout.root), str(spec.order.attempt)]
    return [sys.executable, "-m", AGENT, *agent, *where, *worker]


def first_failure(output: str) -> RankExit | None:
    """The root cause that torchrun printed; used if it reaped a rank before the supervisor could read its status."""
    found = _FAILED_RANK.search(root_cause(output))
    return as_exit(int(found[1]), int(found[3]), int(found[2])) if found else None


def _bad(rank: RankProcess) -> bool:
    return rank.over and rank.status not in (None, 0)
