"""The default launcher: torch.distributed.run (see `torchrun_main`), once per attempt, without its
own restarts.

torchrun's agent polls its workers ten times a second and then needs up to half a minute to stop the
survivors. So the supervisor watches the workers itself (each sends Hello with its pid) and kills
the agent as soon as one has failed. The kernel then kills the survivors (parent-death signal), and
all workers become children of the supervisor, which reaps them and learns how each ended.

On several nodes srun starts an agent on each; they rendezvous in a store hosted by the first, the
supervisor's own node. The supervisor watches the ranks of its own node directly. Of the other nodes
it sees what their agents print, and the end of srun. So after a failure the agents get a few
seconds to report what they saw before everything is killed.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.linux import processes
from ecrl_cli.linux.namespaces import private_command
from ecrl_cli.linux.pdeathsig import with_pdeathsig
from ecrl_cli.supervision.launch.child_environment import child_environment
from ecrl_cli.supervision.launch.launcher import (
    GONE_WITHIN_S,
    LaunchSpec,
    RankExit,
    RankExits,
    RankTable,
    RunningAttempt,
)
from ecrl_cli.supervision.launch.slurm_allocation import slurm_environment, srun

AGENT = "ecrl_cli.supervision.launch.torchrun_main"
# environment variable of an agent and its ranks: the attempt that they belong to
RENDEZVOUS_ID = "TORCHELASTIC_RUN_ID"
_ROOT_CAUSE = re.compile(
    r"Root Cause \(first observed failure\):\s*\[\d+\]:(.*?)(?:={8,}|\Z)", re.DOTALL
)

_FAILED_RANK = re.compile(r"rank\s*: (\d+) .*?exitcode\s*: (-?\d+) \(pid: (\d+)\)", re.DOTALL)

NODE = "ecrl_cli.supervision.launch.srun_node_main"
# an agent notices a death within 0.1 s and needs about 2 s to end; a lost node never reports
REPORTED_WITHIN_S = 8.0
_LABEL = re.compile(r"^ *(\d+): ?", re.MULTILINE)
_FAILED = re.compile(r"\(local_rank: (\d+)\).*?exitcode\s*: (-?\d+) \(pid: (\d+)\)", re.DOTALL)


def root_cause(output: str) -> str:
    """The root-cause section of the agent's failure table; empty if it printed none."""
    found = _ROOT_CAUSE.search(output)
    return found[1] if found else ""


def as_exit(rank: int | None, pid: int, code: int) -> RankExit:
    """RankExit from a return code as in subprocess: -9 is signal 9."""
    return RankExit(rank, pid, None, -code) if code < 0 else RankExit(rank, pid, code, None)


class AgentAttempt:
    """`_agent`: the process that the supervisor starts and watches: the agent itself, or the srun
    that starts one on each node.

    `deaf`: whether it and its ranks ignore SIGTERM, SIGINT and SIGHUP.
    """

    deaf = True

    def __init__(
        self,
        spec: LaunchSpec,
        command: Callable[[LaunchSpec, str, Path], list[str]],
        stdin: int,
        known: Mapping[str, str] | None = None,
    ) -> None:
        self._spec, self._ranks = spec, RankTable()
        self._rendezvous_id = f"ecrl-{secrets.token_hex(8)}"
        self._scratch = Path(spec.output).with_name(".torchelastic")
        launched = with_pdeathsig(command(spec, self._rendezvous_id, self._scratch), deaf=self.deaf)
        with open(spec.output, "ab", buffering=0) as output:
            self._agent = subprocess.Popen(
                private_command(launched) if spec.private_network else launched,
                stdin=stdin,
                stdout=output,
                stderr=output,
                env=child_environment(spec.layout.root, spec.threads, alone=not spec.nodes)
                | dict(known or {RENDEZVOUS_ID: self._rendezvous_id}),
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
        """After the agent has been reaped: reap its ranks, kill those that had not sent Hello yet,
        remove temporary files.
        """
        self._ranks.gather()
        processes.sweep(processes.tagged(f"{RENDEZVOUS_ID}={self._rendezvous_id}"))
        os.close(self._agent_fd)
        shutil.rmtree(self._scratch, ignore_errors=True)


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
        super().__init__(spec, agent_command, subprocess.DEVNULL)

    def check(self) -> bool:
        for rank in self._ranks.newly_over():
            # None: the agent has reaped it. Then the agent's exit code or its table of failures
            # tells how it ended.
            rank.status = processes.peek(rank.pid, rank.pidfd)
        self._ranks.notice(
            [r.exit() for r in self._ranks.known.values() if r.over and r.status not in (None, 0)]
        )
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
        """If so, the attempt is over at once: the agent itself would take most of a second to
        notice and exit.
        """
        ranks = self._ranks.known.values()
        return len(ranks) == self._spec.order.world_size and all(
            rank.over and rank.status == 0 for rank in ranks
        )

    def _notice_agent(self) -> None:
        """The agent ended before any rank was seen to fail."""
        code = self._agent.wait()
        if code == 0:
            self._ended_well()
            return
        table = first_failure(Path(self._spec.output).read_text(encoding="utf-8", errors="replace"))
        self._ranks.notice([table or as_exit(None, self._agent.pid, code)])


def agent_command(spec: LaunchSpec, rdzv_id: str, scratch: Path) -> list[str]:
    """The agent's argv. The store binds a free port itself (0), so that nothing else can take it;
    `scratch` keeps torchrun's logs out of /tmp.
    """
    agent = (
        f"--nnodes 1 --nproc-per-node {spec.order.world_size} --max-restarts 0 --rdzv-backend ecrl"
        " --local-addr 127.0.0.1".split()
    )
    # its default list would handle the signals that it is started to ignore
    agent += ["--signals-to-handle", "SIGQUIT"]
    where = [
        "--rdzv-id",
        rdzv_id,
        "--rdzv-endpoint",
        f"127.0.0.1:{spec.port}",
        "--log-dir",
        str(scratch),
    ]
    worker = ["-m", spec.module, str(spec.layout.root), str(spec.order.attempt)]
    return [
        sys.executable,
        "-m",
        AGENT,
        *forks(spec, spec.order.world_size),
        *agent,
        *where,
        *worker,
    ]


def forks(spec: LaunchSpec, ranks: int) -> list[str]:
    """The first words of an agent with `ranks` ranks."""
    return [str(ranks), ",".join(dict.fromkeys((spec.module, *spec.preload)))]


def first_failure(output: str) -> RankExit | None:
    """The root cause that torchrun printed; used if it reaped a rank before the supervisor could
    read its status.
    """
    found = _FAILED_RANK.search(root_cause(output))
    return as_exit(int(found[1]), int(found[3]), int(found[2])) if found else None


class NodesAttempt(AgentAttempt):
    # agents end their remaining ranks by SIGTERM; ranks without heartbeat table cannot save a last
    # checkpoint anyway
    deaf = False

    def __init__(self, spec: LaunchSpec) -> None:
        super().__init__(spec, srun_command, subprocess.PIPE, slurm_environment())
        self._killed = False

    def check(self) -> bool:
        for rank in self._ranks.newly_over():
            rank.status = processes.peek(rank.pid, rank.pidfd)
        self._ranks.notice(
            [rank.exit() for rank in self._ranks.known.values() if rank.over and rank.status]
        )
        if not self._agent_over and processes.ended(self._agent_fd):
            self._agent_over = True
            code = self._agent.wait()
            if code:
                self._ranks.notice([as_exit(None, self._agent.pid, code)])
        return self._agent_over or self._ranks.first is not None

    def kill(self) -> None:
        """Close srun's standard input: each node's wrapper then ends and kills everything on its
        node. srun itself may keep waiting for a lost node.
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
        """Prefer the root cause that an agent reported to what was noticed first, which is often a
        survivor that lost its peer.
        """
        if code == 0:
            self._ended_well()
        if self._ranks.first is not None:
            ranks_per_node = self._spec.order.world_size // len(self._spec.nodes)
            reported = node_failures(
                Path(self._spec.output).read_text(encoding="utf-8", errors="replace"),
                ranks_per_node,
            )
            self._ranks.first = min([self._ranks.first, *reported], key=_explains_less)


def srun_command(spec: LaunchSpec, rdzv_id: str, scratch: Path) -> list[str]:
    """srun's argv. The head node's port is free now and bound a moment later: if it is taken by
    then, the attempt dies and the next one picks another.
    """
    ranks_per_node = spec.order.world_size // len(spec.nodes)
    agent = (
        f"--nnodes {len(spec.nodes)} --nproc-per-node {ranks_per_node} --max-restarts 0"
        " --rdzv-backend ecrl".split()
    )
    where = [
        "--rdzv-id",
        rdzv_id,
        "--rdzv-endpoint",
        f"{socket.gethostname()}:{spec.port or free_port()}",
        "--log-dir",
        str(scratch),
    ]
    worker = ["-m", spec.module, str(spec.layout.root), str(spec.order.attempt)]
    return srun(
        spec.nodes,
        [
            sys.executable,
            "-m",
            NODE,
            rdzv_id,
            *forks(spec, ranks_per_node),
            *agent,
            *where,
            *worker,
        ],
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def node_failures(output: str, ranks_per_node: int) -> list[RankExit]:
    """The root cause that each node's agent printed to srun's labelled `output`. `ranks_per_node`:
    ranks per node.
    """
    found = []
    for node in sorted({int(label) for label in _LABEL.findall(output)}):
        own = "\n".join(
            line.split(":", 1)[1] for line in output.splitlines() if re.match(rf" *{node}:", line)
        )
        failed = _FAILED.search(root_cause(own))
        if failed:
            found.append(
                as_exit(node * ranks_per_node + int(failed[1]), int(failed[3]), int(failed[2]))
            )
    return found


def _explains_less(end: RankExit) -> tuple[bool, bool]:
    """Sort key, worst explanation last: a rank that lost a peer ends with exit code 1, one ended by
    its agent with SIGTERM; srun repeats a rank's code.
    """
    return end.exit_code == 1 or end.signal == signal.SIGTERM, end.rank is None
