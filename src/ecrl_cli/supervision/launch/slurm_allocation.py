"""The Slurm allocation of a multi-node run: its nodes, which of them respond, and how to requeue
the job.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from ecrl_cli.config.elastic import place_ranks
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import ConfigError, Stopped, plural
from ecrl_cli.linux import processes
from ecrl_cli.linux.prerequisites import program

KEY = "supervision.nodes"
REQUEUED = "requeued"  # error code of a supervisor that ends because its job was requeued
# srun itself gives up on a node that does not respond after about ten seconds
ANSWERS_WITHIN_S = 30.0
# All that srun needs. The other SLURM_ variables describe the step that this process runs in, and
# would change the options of the next one.
_KEPT = ("SLURM_CONF", "SLURM_JOB_ID", "SLURM_CLUSTERS")


@dataclass(frozen=True)
class NodePlacement:
    """Where the ranks of an attempt run: equally many on each of `nodes`, the first of which is the
    supervisor's own.

    `silent`: nodes of the allocation that did not respond.
    """

    nodes: tuple[str, ...]
    world_size: int
    silent: tuple[str, ...] = ()


def slurm_environment() -> dict[str, str]:
    """The environment variables that a Slurm command needs."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ}


def check_allocation(config: RunConfig) -> None:
    """ConfigError if `config` asks for several nodes and this process is not on the first node of
    an allocation with enough nodes.
    """
    wanted = config.supervision.nodes
    if wanted == 1:
        return
    if "SLURM_JOB_ID" not in os.environ or not program("srun"):
        raise ConfigError(
            KEY,
            f"{plural(wanted, 'node')} asked, this is no Slurm allocation",
            "start it with sbatch, or with hydra/launcher=submitit_slurm",
        )
    nodes = allocated()
    if len(nodes) < wanted:
        raise ConfigError(
            KEY,
            f"{plural(wanted, 'node')} asked, the allocation has {len(nodes)} ({','.join(nodes)})",
            "ask Slurm for more nodes",
        )
    here = os.environ.get("SLURMD_NODENAME", "")
    if here != nodes[0]:
        where = here or "a machine outside the allocation"
        raise ConfigError(
            KEY,
            f"the supervisor runs on {where}, the allocation begins with {nodes[0]}",
            "start it from the batch script itself",
        )


def allocated() -> tuple[str, ...]:
    """The names of the allocation's nodes in Slurm's order. ConfigError if Slurm does not list
    them.
    """
    words = ["scontrol", "show", "hostnames", os.environ.get("SLURM_JOB_NODELIST", "")]
    listed = subprocess.run(
        words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if listed.returncode or not listed.stdout.split():
        reason = " ".join(listed.stderr.split()) or "it names none"
        raise ConfigError(
            KEY,
            f"Slurm does not tell the nodes of {words[-1] or 'this allocation'} ({reason})",
            "start it from the batch script itself",
        )
    return tuple(listed.stdout.split())


def answering(nodes: Sequence[str]) -> tuple[str, ...]:
    """The subset of `nodes` on which srun can start a process. All are tried at once; srun gives up
    on a dead one after about ten seconds.
    """
    probes = {node: _ask(node) for node in nodes}
    fds = {node: os.pidfd_open(process.pid) for node, process in probes.items()}
    processes.wait_all(fds.values(), ANSWERS_WITHIN_S)
    for node, process in probes.items():
        processes.kill(fds[node])
        process.wait()
        os.close(fds[node])
    return tuple(node for node, process in probes.items() if process.returncode == 0)


def _ask(node: str) -> subprocess.Popen[bytes]:
    null = subprocess.DEVNULL
    return subprocess.Popen(
        srun([node], ["true"]), stdin=null, stdout=null, stderr=null, env=_environment()
    )


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", ""), **slurm_environment()}


def srun(nodes: Sequence[str], command: Sequence[str]) -> list[str]:
    """An argv that runs `command` once on each of `nodes` in the allocation, beside other steps,
    with output labelled line by line.
    """
    shape = [
        f"--nodes={len(nodes)}",
        f"--ntasks={len(nodes)}",
        "--ntasks-per-node=1",
        f"--nodelist={','.join(nodes)}",
    ]
    return [program("srun") or "srun", *shape, "--overlap", "--cpu-bind=none", "--label", *command]


def placement_on(
    alive: Sequence[str], config: RunConfig, silent: Sequence[str] = ()
) -> NodePlacement:
    """The placement on the nodes `alive`, the supervisor's own first: see `place_ranks`. `silent`:
    nodes that do not respond.
    """
    world_size, count = place_ranks(config, len(alive))
    return NodePlacement(tuple(alive[:count]), world_size, tuple(silent))


def place_attempt(config: RunConfig) -> NodePlacement:
    """The placement of the next attempt.

    If nodes of the allocation are lost: on the remaining nodes (`shrink`), or none: the job is
    requeued and Stopped is raised (`requeue`). ConfigError outside a fitting allocation.
    """
    if config.supervision.nodes == 1:
        return NodePlacement((), config.world_size)
    check_allocation(config)
    nodes = allocated()
    alive = (nodes[0], *answering(nodes[1:]))  # the supervisor's own node need not be tried
    silent = [node for node in nodes if node not in alive]
    if len(alive) >= config.supervision.nodes or config.supervision.on_node_loss == "shrink":
        return placement_on(alive, config, silent)
    raise _requeue(silent)


def _job() -> str:
    """Slurm's id of this job. In a job array, <array>_<task>: the last task's SLURM_JOB_ID is the
    array's id, which would mean all tasks.
    """
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ["SLURM_JOB_ID"]


def requeued() -> bool:
    """Whether Slurm has put this process's job back into the queue, whoever asked for it. False
    outside a job, or if Slurm does not say.

    A lost node, preemption and an administrator do that too: the job counts one restart more than
    this process began with.
    """
    if "SLURM_JOB_ID" not in os.environ or not program("scontrol"):
        return False
    restarts = re.search(r"\bRestarts=(\d+)", _scontrol("--oneliner", "show", "job", _job()).stdout)
    return restarts is not None and int(restarts[1]) > int(
        os.environ.get("SLURM_RESTART_COUNT") or 0
    )


def _requeue(silent: Sequence[str]) -> Stopped:
    job = _job()
    requeue = _scontrol("requeue", job)
    gone = f"{', '.join(silent)} of the allocation does not answer"
    # Slurm refuses for a job that it has requeued itself when it missed the node
    if requeue.returncode and not requeued():
        reason = " ".join(requeue.stderr.split())
        return Stopped(
            "SIGTERM",
            f"{gone} and Slurm does not start job {job} anew ({reason})",
            "start the same command again in a whole allocation",
        )
    return Stopped(
        "SIGTERM",
        f"{gone}; Slurm starts job {job} anew",
        "it goes on from its newest checkpoint",
        code=REQUEUED,
    )


def _scontrol(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["scontrol", *words]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env=_environment(),
    )
