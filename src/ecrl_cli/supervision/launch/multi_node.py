"""One attempt on several nodes: srun starts a torchrun agent on each; they rendezvous in a store hosted by the first, the supervisor's own node.

The supervisor watches the ranks of its own node directly. Of the other nodes it sees what their agents print, and the end of srun. So after a
failure the agents get a few seconds to report what they saw before everything is killed.
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
REPORTED_WITHIN_S = 8.0  # an agent notices a death within 0.1 s and needs about 2 s to end; a lost node never reports
_LABEL = re.compile(r"^ *(\d+): ?", re.MULTILINE)
_FAILED = re.compile(r"\(local_rank: (\d+)\).*?exitcode\s*: (-?\d+) \(pid: (\d+)\)", re.DOTALL)


class NodesAttempt(AgentAttempt):
    deaf = False  # agents end their remaining ranks by SIGTERM; ranks without heartbeat table cannot save a last checkpoint anyway

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
        """Close srun's standard input: each node's wrapper then ends and kills everything on its node. srun itself may keep waiting for a lost
        node.
        """
        if not self._killed and not self._ranks.closed:
            self._killed = True
            assert self._agent.stdin is not None
            self._agent.stdin.close()

    def reap(self) -> RankExits:
        if self._ranks.closed:
            return self._ranks.exits()
        if self._ranks.first is not None and not self._killed:
            processes.wait_all([self._agent_fd], REPORTED_WITHIN_S)
        self.kill()
        processes.wait_all([self._agent_fd], GONE_WITHIN_S)
        processes.kill(self._agent_fd)
        code = self._agent.wait()
        self._ranks.kill()
        self._leave_nothing()
        self._name_the_cause(code)
        return self._ranks.exits()

    def _name_the_cause(self, code: int) -> None:
        """Prefer the root cause that an agent reported to what was noticed first, which is often a survivor that lost its peer."""
        if code == 0:
            self._ended_well()
        if self._ranks.first is not None:
            ranks_per_node = self._spec.order.world_size // len(self._spec.nodes)
            reported = failures(Path(self._spec.output).read_text(encoding="utf-8", errors="replace"), ranks_per_node)
            self._ranks.first = min([self._ranks.first, *reported], key=_explains_less)


def command(spec: LaunchSpec, run_id: str, scratch: Path) -> list[str]:
    """srun's argv. The head node's port is free now and bound a moment later: if it is taken by then, the attempt dies and the next one picks
    another.
    """
    ranks_per_node = spec.order.world_size // len(spec.nodes)
    agent = f"--nnodes {len(spec.nodes)} --nproc-per-node {ranks_per_node} --max-restarts 0 --rdzv-backend ecrl".split()
    where = ["--rdzv-id", run_id, "--rdzv-endpoint", f"{socket.gethostname()}:{spec.port or free_port()}", "--log-dir", str(scratch)]
    worker = ["-m", spec.module, str(spec.layout.root), str(spec.order.attempt)]
    return srun(spec.nodes, [sys.executable, "-m", NODE, run_id, *agent, *where, *worker])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def failures(output: str, ranks_per_node: int) -> list[RankExit]:
    """The root cause that each node's agent printed to srun's labelled `output`. `ranks_per_node`: ranks per node."""
    found = []
    for node in sorted({int(label) for label in _LABEL.findall(output)}):
        own = "\n".join(line.split(":", 1)[1] for line in output.splitlines() if re.match(rf" *{node}:", line))
        failed = _FAILED.search(root_cause(own))
        if failed:
            found.append(as_exit(node * ranks_per_node + int(failed[1]), int(failed[3]), int(failed[2])))
    return found


def _explains_less(end: RankExit) -> tuple[bool, bool]:
    """Sort key, worst explanation last: a rank that lost a peer ends with exit code 1, one ended by its agent with SIGTERM; srun repeats a rank's
    code.
    """
    return end.exit_code == 1 or end.signal == signal.SIGTERM, end.rank is None
