"""Nobody gets in: on one machine nothing of a job listens beyond the loopback, and nothing that
lies in its store is unpickled.
"""

from __future__ import annotations

import base64
import pickle
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from ecrl_cli.config.launchers import LAUNCHERS
from ecrl_cli.supervision.launch.launcher import LaunchSpec, RunningAttempt
from ecrl_cli.supervision.launch.torchrun import AgentAttempt
from tests.contract.standin import PYTHONPATH, registered_launcher, scripted, spec

GROUP = "tests.contract.standin_group"
PLANT = """
import sys
from datetime import timedelta
from torch._C._distributed_c10d import TCPStore
for port in sys.argv[3:]:
    try:
        store = TCPStore("127.0.0.1", int(port), is_master=False, timeout=timedelta(seconds=2))
        store.set("torch.rendezvous." + sys.argv[1], sys.argv[2])
    except Exception as error:
        print(port, error)  # not every port is a store's
"""


class Evil:
    """Creates a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.path), "w")


@pytest.fixture(params=LAUNCHERS.names())
def job(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[LaunchSpec, RunningAttempt]]:
    """A job whose group has been formed, and waits."""
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    # what a user may have set for other jobs
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", _other_device() or "lo")
    launcher = registered_launcher(request.param, GROUP)
    made = spec(scripted(tmp_path), 1)
    running = launcher.launch(replace(made, module=GROUP, preload=(GROUP,)))
    try:
        while not (tmp_path / "up0").exists():
            assert not running.check(), Path(made.output).read_text()
            time.sleep(0.01)
        yield made, running
    finally:
        running.kill()
        running.reap()
        launcher.close()


def test_a_job_on_one_machine_cannot_be_reached_or_made_to_run_code(
    job: tuple[LaunchSpec, RunningAttempt], tmp_path: Path
) -> None:
    _, running = job
    listening = _listening()
    assert listening, "the store and the group listen"
    assert {ip for ip, _ in listening} <= {"127.0.0.1", "::1"}, listening
    for _, port in listening:
        for address in {"127.0.0.2", *_other_addresses()}:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((address, port), timeout=10).close()
    if isinstance(running, AgentAttempt):
        _plant(running, tmp_path, _ports_of(running._agent.pid))


def _plant(running: AgentAttempt, folder: Path, ports: list[int]) -> None:
    """From another process: where torchrun's own rendezvous would unpickle it before it ends."""
    environment = next(
        found for process in _family() if "TORCHELASTIC_RUN_ID" in (found := _environment(process))
    )
    evil = base64.b64encode(pickle.dumps(Evil(folder / "canary"))).decode()
    plant = [
        sys.executable,
        "-c",
        PLANT,
        environment["TORCHELASTIC_RUN_ID"],
        evil,
        *map(str, ports),
    ]
    subprocess.run(plant, check=True, timeout=120)
    (folder / "go").touch()
    running._agent.wait()
    assert not (folder / "canary").exists(), "what was planted ran"


def _family() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _environment(process: psutil.Process) -> dict[str, str]:
    """Empty where it has ended meanwhile."""
    try:
        return process.environ()
    except (psutil.NoSuchProcess, ProcessLookupError):
        return {}


def _listening() -> set[tuple[str, int]]:
    """Address and port of every socket of this process's children that waits for connections."""
    connections = [each for process in _family() for each in process.net_connections("inet")]
    return {
        (each.laddr.ip, each.laddr.port)
        for each in connections
        if each.status in (psutil.CONN_LISTEN, psutil.CONN_NONE)
    }


def _ports_of(pid: int) -> list[int]:
    """Where a process, or one of its threads, waits for connections."""
    return [
        each.laddr.port
        for each in psutil.Process(pid).net_connections("inet")
        if each.status == psutil.CONN_LISTEN
    ]


def _other_addresses() -> list[str]:
    found = [
        each.address
        for device in psutil.net_if_addrs().values()
        for each in device
        if each.family == socket.AF_INET
    ]
    return [address for address in found if not re.match(r"127\.", address)]


def _other_device() -> str | None:
    up = psutil.net_if_stats()
    addresses = psutil.net_if_addrs()
    return next(
        (
            name
            for name in addresses
            if name != "lo"
            and up[name].isup
            and any(a.family == socket.AF_INET for a in addresses[name])
        ),
        None,
    )


def test_the_agents_of_several_nodes_meet_by_number_and_two_jobs_never_meet() -> None:
    from ecrl_cli.supervision.launch.torchrun_main import FixedRendezvous

    head = FixedRendezvous("127.0.0.1", 0, 0, 2, "job")
    first = head.next_rendezvous()
    where = first.bootstrap_store_info
    assert where is not None
    second = FixedRendezvous("127.0.0.1", where.master_port, 1, 2, "job").next_rendezvous()
    stranger = FixedRendezvous("127.0.0.1", where.master_port, 1, 2, "another").next_rendezvous()
    first.store.set("key", b"of the job")
    assert [(each.rank, each.world_size) for each in (first, second)] == [(0, 2), (1, 2)]
    assert second.store.get("key") == b"of the job"
    assert not stranger.store.check(["key"])
