"""The program that srun starts once on each node of a multi-node run: a torchrun agent, with all
its processes killed when the supervisor has gone.

`python -m ecrl_cli.supervision.launch.srun_node_main RDZV_ID RANKS MODULES ARGUMENTS...`.
Parent-death signals do not work across machines. Standard input does: the supervisor holds the
other end of srun's, so its death, however it comes, is end of file here.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys

from ecrl_cli.linux import processes
from ecrl_cli.linux.pdeathsig import with_pdeathsig
from ecrl_cli.supervision.launch.torchrun import AGENT, RENDEZVOUS_ID

CUT_OFF = 1
# environment variable of the ranks: the number of their node; 0 is the supervisor's
NODE_VARIABLE = "ECRL_NODE"


def main(arguments: list[str]) -> int:
    """The agent's exit code, or CUT_OFF if the agent was killed because the supervisor has gone."""
    rdzv_id, ranks, modules, *rest = arguments
    node = os.environ["SLURM_PROCID"]
    processes.become_subreaper()
    # The head node hosts the store because it is number 0, not by comparing addresses: its name may
    # resolve to an address that it does not have.
    agent = subprocess.Popen(
        with_pdeathsig(
            [sys.executable, "-m", AGENT, ranks, modules, "--rdzv-conf", f"node={node}", *rest]
        ),
        stdin=subprocess.DEVNULL,
        env={
            **os.environ,
            NODE_VARIABLE: node,
            RENDEZVOUS_ID: rdzv_id,
            "ECRL_SUPERVISOR": str(os.getpid()),
        },
        start_new_session=True,
    )
    agent_fd = os.pidfd_open(agent.pid)
    try:
        return agent.wait() if _ended(agent_fd) else CUT_OFF
    finally:
        processes.kill(agent_fd)
        agent.wait()
        here, ours = (
            processes.tagged(f"{NODE_VARIABLE}={node}"),
            processes.tagged(f"{RENDEZVOUS_ID}={rdzv_id}"),
        )
        # both tags: two nodes may be one machine
        processes.sweep(lambda pid: here(pid) and ours(pid))


def _ended(agent_fd: int) -> bool:
    """Wait for the agent's end. False if the supervisor's end, seen on standard input, came
    first.
    """
    poll = select.poll()
    poll.register(agent_fd, select.POLLIN)
    poll.register(0, select.POLLIN)
    while True:
        ready = [fd for fd, _ in poll.poll()]
        if agent_fd in ready:
            return True
        if not os.read(0, 1024):
            return False


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.exit(128 - code if code < 0 else code)
