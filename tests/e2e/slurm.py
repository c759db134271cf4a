"""A real Slurm on this one host: munge, a controller and three nodes, all of them children of the
tests and gone with them.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from ecrl_cli.linux.prerequisites import lacking, program

NODES = ("n1", "n2", "n3")
_CONF = """
ClusterName=ecrl
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={root}/munge.socket
StateSaveLocation={root}/state
SlurmctldPidFile={root}/slurmctld.pid
SlurmdSpoolDir={root}/spool.%n
SlurmdPidFile={root}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
KillWait=5
SlurmdTimeout=30
MpiDefault=none
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Why no Slurm can be brought up here; empty where it can."""
    return lacking("slurm daemons", "root")


@dataclass
class Slurm:
    """A running cluster. `environment`: what a command needs to find it."""

    root: Path
    environment: dict[str, str]
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def ask(self, *words: str) -> str:
        return subprocess.run(
            words,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    def start(self, name: str, *words: str) -> None:
        daemon, *rest = words
        with (self.root / f"{name}.log").open("ab") as log:
            given = {"PATH": os.environ["PATH"], **self.environment}
            self.daemons[name] = subprocess.Popen(
                [program(daemon), *rest],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=given,
            )

    def wait(self, what: str, ready: Callable[[], bool], seconds: float) -> None:
        """Return once `ready` (a bounded wait for an event, not a pause)."""
        deadline = time.monotonic() + seconds
        while not ready():
            assert time.monotonic() < deadline, f"waited {seconds} s for {what}\n{self._seen()}"
            time.sleep(0.05)

    def _seen(self) -> str:
        views = (["squeue"], ["squeue", "-s"], ["sinfo", "-N"])
        asked = [
            subprocess.run(
                v,
                env={**os.environ, **self.environment},
                capture_output=True,
                text=True,
                check=False,
            ).stdout
            for v in views
        ]
        return "\n".join(
            [*asked, *(f"{log.name}: {log.read_text()[-800:]}" for log in self.root.glob("*.log"))]
        )

    def idle(self) -> bool:
        return self.ask("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * len(NODES)

    def lose(self, node: str) -> None:
        """All that runs on `node` dies at once, its slurmd too."""
        tasks = [process for process in psutil.process_iter() if _on(process, node)]
        steps = {
            above
            for process in tasks
            if (above := process.parent()) and above.name().startswith("slurmstepd")
        }
        assert tasks, f"nothing runs on {node}"
        for process in (psutil.Process(self.daemons[node].pid), *steps, *tasks):
            process.send_signal(signal.SIGKILL)
        self.daemons.pop(node).wait()

    def allocated(self) -> list[str]:
        """The nodes of the one job that runs, in order."""
        return self.ask(
            "scontrol",
            "show",
            "hostnames",
            self.ask("squeue", "-h", "-t", "R", "-o", "%N").split()[0],
        ).split()

    def close(self) -> None:
        subprocess.run(
            ["scancel", "-u", "root"],
            env={**os.environ, **self.environment},
            check=False,
            capture_output=True,
            timeout=20,
        )
        for process in psutil.process_iter():
            if _of(process, self.root):
                process.kill()
        for daemon in self.daemons.values():
            daemon.kill()
            daemon.wait()


@contextmanager
def slurm(root: Path) -> Iterator[Slurm]:
    """Three idle nodes of two processors each."""
    host, ports = socket.gethostname(), _free_ports(4)
    lines = [
        f"NodeName={n} NodeHostname={host} NodeAddr=127.0.0.1 Port={p} CPUs=2 RealMemory=1000"
        for n, p in zip(NODES, ports[1:], strict=True)
    ]
    (root / "slurm.conf").write_text(
        _CONF.format(host=host, ports=ports, root=root, nodes="\n".join(lines))
    )
    (root / "state").mkdir()
    (root / "key").write_bytes(os.urandom(128))
    (root / "key").chmod(0o600)
    cluster = Slurm(root, {"SLURM_CONF": str(root / "slurm.conf")})
    try:
        files = {
            "socket": "munge.socket",
            "key-file": "key",
            "pid-file": "munge.pid",
            "log-file": "munge.log",
            "seed-file": "munge.seed",
        }
        cluster.start(
            "munge",
            "munged",
            "--foreground",
            "--force",
            *(f"--{option}={root / name}" for option, name in files.items()),
        )
        cluster.wait("munge", (root / "munge.socket").exists, 10)
        cluster.start("slurmctld", "slurmctld", "-D")
        for node in NODES:
            cluster.start(node, "slurmd", "-D", "-N", node)
        cluster.wait("three idle nodes", lambda: _up(cluster) and cluster.idle(), 30)
        yield cluster
    finally:
        cluster.close()


def _up(cluster: Slurm) -> bool:
    asked = subprocess.run(
        ["scontrol", "ping"],
        env={**os.environ, **cluster.environment},
        check=False,
        capture_output=True,
    )
    return asked.returncode == 0


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _on(process: psutil.Process, node: str) -> bool:
    try:
        return process.environ().get("SLURMD_NODENAME") == node
    except psutil.Error:
        return False


def _of(process: psutil.Process, root: Path) -> bool:
    """Whether a process was started by this Slurm: a step's daemon, or what runs in a step."""
    try:
        # its title has overwritten its environment; its socket lies in the spool folder
        if process.name().startswith("slurmstepd"):
            return any(
                str(connection.laddr).startswith(f"{root}/")
                for connection in process.net_connections("unix")
            )
        inside = process.environ().get("SLURM_CONF") == f"{root}/slurm.conf"
        return (
            inside
            and process.pid != os.getpid()
            and ("SLURM_JOB_ID" in process.environ() or process.name().startswith("slurm"))
        )
    except psutil.Error:
        return False
