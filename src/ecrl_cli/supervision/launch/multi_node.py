"""One attempt on several nodes: srun starts an agent on each, they meet in a store that the first hosts, which is the supervisor's own.

The supervisor sees the ranks of its own node as they are born and die. Of the others it knows what their agents print, and that srun
comes to its end: so once something has gone wrong, the agents get a moment to say what they saw before all is killed.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

from ecrl_cli.linux import processes
from ecrl_cli.supervision.launch.launcher import GONE_WITHIN_S, LaunchSpec, RankExit, RankExits
from ecrl_cli.supervision.launch.slurm_allocation import slurm_environment, srun
from ecrl_cli.supervision.launch.torchrun_agent import AgentAttempt, as_exit, root_cause

NODE = "ecrl_cli.supervision.launch.srun_node_main"
TOLD_WITHIN_S = 8.0  # an agent sees a death within a tenth of a second and needs about two to end; a lost node never tells
_LABEL = re.compile(r"^ *(\d+): ?", re.MULTILINE)
_FAILED = re.compile(r"\(local_rank: (\d+)\).*?exitcode\s*: (-?\d+) \(pid: (\d+)\)", re.DOTALL)


class NodesAttempt(AgentAttempt):
    deaf = False  # an agent stops what is left of its node by SIGTERM; and ranks that no board reaches have no last checkpoint to lose

    def __init__(self, spec: LaunchSpec) -> None:
        super().__init__(spec, command, subprocess.PIPE, slurm_environment())
        self._killed = False

    def check(self) -> bool:
        for rank in self._ranks.newly_over():
            rank.status = processes.peek(rank.pid, rank.pidfd)
        self._ranks.notice([rank.exit() for rank in self._ranks.known.values() if rank.over and rank.status])
        if not self._agent_over and processes.ended(self._agent_fd):
            self._agent_over = True
            code = self._agent.wait()
            if code:
                self._ranks.notice([as_exit(None, self._agent.pid, code)])
        return self._agent_over or self._ranks.first is not None

    def kill(self) -> None:
        """The end of its input ends the wrapper of each agent, and with it all of its node; srun itself may wait for a node that is lost."""
        if not self._killed and not self._ranks.closed:
            self._killed = True
            assert self._agent.stdin is not None
            self._agent.stdin.close()

    def reap(self) -> RankExits:
        if self._ranks.closed:
            return self._ranks.exits()
        if self._ranks.first is not None and not self._killed:
            processes.wait_all([self._agent_fd], TOLD_WITHIN_S)
        self.kill()
        processes.wait_all([self._agent_fd], GONE_WITHIN_S)
        processes.kill(self._agent_fd)
        code = self._agent.wait()
        self._ranks.kill()
        self._leave_nothing()
        self._name_the_cause(code)
        return self._ranks.exits()

    def _name_the_cause(self, code: int) -> None:
        """What the agents of all nodes saw explains more than what was noticed first: most often a survivor that lost its peer."""
        if code == 0:
            self._ended_well()
        if self._ranks.first is not None:
            each = self._spec.order.world_size // len(self._spec.nodes)
            told = failures(Path(self._spec.output).read_text(encoding="utf-8", errors="replace"), each)
            self._ranks.first = min([self._ranks.first, *told], key=_explains_less)


def command(spec: LaunchSpec, meeting: str, scratch: Path) -> list[str]:
    """srun's argv. The head's port is free now, and is taken a moment later: an attempt that finds it gone dies, and the next one asks again."""
    each = spec.order.world_size // len(spec.nodes)
    agent = f"--nnodes {len(spec.nodes)} --nproc-per-node {each} --max-restarts 0 --rdzv-backend ecrl".split()
    where = ["--rdzv-id", meeting, "--rdzv-endpoint", f"{socket.gethostname()}:{spec.port or free_port()}", "--log-dir", str(scratch)]
    worker = ["-m", spec.module, str(spec.layout.root), str(spec.order.attempt)]
    return srun(spec.nodes, [sys.executable, "-m", NODE, meeting, *agent, *where, *worker])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def failures(output: str, each: int) -> list[RankExit]:
    """The root cause that each node's agent printed into srun's labelled `output`; `each`: ranks per node."""
    found = []
    for node in sorted({int(label) for label in _LABEL.findall(output)}):
        own = "\n".join(line.split(":", 1)[1] for line in output.splitlines() if re.match(rf" *{node}:", line))
        failed = _FAILED.search(root_cause(own))
        if failed:
            found.append(as_exit(node * each + int(failed[1]), int(failed[3]), int(failed[2])))
    return found


def _explains_less(end: RankExit) -> tuple[bool, bool]:
    """A lost peer ends a rank with exit code 1, an agent its other ranks by SIGTERM, and srun passes on what a rank has told before."""
    return end.exit_code == 1 or end.signal == signal.SIGTERM, end.rank is None
