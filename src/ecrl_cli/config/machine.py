"""Checks without torch what a configuration requires of this machine; the exact check is a rank's
own start.
"""

from __future__ import annotations

import os
import re
import resource
import socket
import sys
from importlib import machinery, metadata, util
from pathlib import Path

from ecrl_cli.config.elastic import sizes
from ecrl_cli.config.estimates import human_bytes, snapshot_bytes
from ecrl_cli.config.hmac_key import read_key
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.config.trackers import TRACKERS
from ecrl_cli.errors import ConfigError, plural

_GPU = re.compile(r"^nvidia\d+$")
# Descriptors that one process may need: what a supervisor or rank holds anyway, and for each rank
# its pidfds, pipes and connections.
_OPEN_FILES, _OPEN_FILES_PER_RANK = 64, 16


def check_machine(config: RunConfig) -> None:
    """ConfigError if this machine cannot run `config`."""
    _allow_open_files(max(sizes(config)))
    if config.device == "cuda":
        _check_cuda(max(sizes(config)) // config.supervision.nodes, shared=config.backend == "gloo")
    elif config.device == "cpu" and config.backend == "nccl":
        raise ConfigError("backend", "nccl needs CUDA, device is cpu", "leave it out")
    TRACKERS.of(config.tracker.name).refuse(config.tracker.place)
    read_key(config.checkpoint.hmac_key_file)
    read_key(config.seal.key_file, "seal.key_file")
    if config.supervision.master_port:
        _check_port(config.supervision.master_port)
    strategy = strategy_of(config)
    if strategy.checkpointer and (lacking := strategy.checkpointer.lacking()):
        raise ConfigError(
            "checkpoint", f"{strategy.name}: {lacking}", "install it, or choose another strategy"
        )
    if strategy.background:
        _check_memory(config)


def check_torch() -> None:
    """ConfigError if torch is missing or built for another Python, without importing it (a second
    or two). Otherwise each attempt would start only to fail.
    """
    try:
        found = util.find_spec("torch")
    except ImportError:
        found = None
    folders = [Path(folder) for folder in found.submodule_search_locations or ()] if found else []
    if not any(
        (folder / f"_C{suffix}").is_file()
        for folder in folders
        for suffix in machinery.EXTENSION_SUFFIXES
    ):
        what = (
            f"what lies in {folders[0]} is no torch for this Python"
            if folders
            else "is not installed"
        )
        remedy = (
            f"{sys.executable} -m pip install torch torchvision, or ecrl[train] (verify, report and"
            " audit do without)"
        )
        raise ConfigError("torch", f"{what}: it cannot be imported", remedy)


def visible_gpus(devices: Path = Path("/dev")) -> int:
    """How many CUDA devices a process would see, from the device files and CUDA_VISIBLE_DEVICES."""
    present = sum(1 for path in devices.iterdir() if _GPU.match(path.name))
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (
        present
        if chosen is None
        else min(
            present, len([name for name in chosen.split(",") if name.strip() not in ("", "-1")])
        )
    )


def available_memory() -> int:
    """The kernel's MemAvailable, in bytes."""
    fields = dict(
        line.split(":", 1)
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    )
    return int(fields["MemAvailable"].split()[0]) * 1024


def _torch_build() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "none installed"


def _check_cuda(ranks: int, *, shared: bool) -> None:
    build, gpus = _torch_build(), visible_gpus()
    if not gpus or build.endswith("+cpu"):
        raise ConfigError(
            "device",
            f"CUDA is not available (torch {build}, {gpus} CUDA devices visible)",
            "set device=cpu",
        )
    if ranks > gpus and not shared:
        devices = "1 CUDA device" if gpus == 1 else f"{gpus} CUDA devices"
        raise ConfigError(
            "world_size",
            f"{plural(ranks, 'rank')} asked, {devices} visible",
            "lower world_size, set device=cpu, or share: backend=gloo",
        )


def _allow_open_files(ranks: int) -> None:
    """Raise this process's limit as far as `ranks` need it and the machine allows.

    Refused here because elsewhere it would look like a hang: torch's store tries for five minutes
    to connect without a free descriptor.
    """
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = _OPEN_FILES + _OPEN_FILES_PER_RANK * ranks
    if resource.RLIM_INFINITY != allowed < need:
        if resource.RLIM_INFINITY != most < need:
            raise ConfigError(
                "open files",
                f"at most {most} allowed, {plural(ranks, 'rank')} may need {need}",
                f"raise the limit: ulimit -n {need}",
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, most))


def _check_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(
                "supervision.master_port",
                f"port {port} is not free ({error.strerror})",
                "leave it out: a free one is taken",
            ) from error


def _check_memory(config: RunConfig) -> None:
    kept, shared = strategy_of(config).snapshots, int(config.checkpoint.capture == "deferred")
    flights, size, free = (
        strategy_of(config).in_flight(config.checkpoint) + kept + shared,
        snapshot_bytes(config),
        available_memory(),
    )
    if flights * size > free:
        also = f" ({kept} of them kept for recovery)" if kept else ""
        also += " (one of them the state that is shared with the writer)" if shared else ""
        fact = (
            f"{flights} x {human_bytes(size)}{also} would need {human_bytes(flights * size)} of"
            f" memory, {human_bytes(free)} free"
        )
        raise ConfigError("checkpoint.max_inflight", fact, "lower it")
