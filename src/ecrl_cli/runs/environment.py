"""The environment of a run: versions, processor, memory, GPUs, file system, code revision; and how
that of existing runs differs.

Without torch: versions come from package metadata.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Collection, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from ecrl_cli import __version__
from ecrl_cli.config.codec import flat
from ecrl_cli.config.strategies import STRATEGIES
from ecrl_cli.errors import EcrlError, shown
from ecrl_cli.history.load import RUNS_AT_ONCE
from ecrl_cli.records.digests import source_sha256
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import read_run_config
from ecrl_cli.supervision.launch.child_environment import kernel_choices

PACKAGES = tuple(
    (
        "torch torchvision hydra-core omegaconf numpy pandas matplotlib scipy safetensors"
        " torch_checkpointing torchsnapshot"
    ).split()
)


_ELSEWHERE = ("pandas", "matplotlib", "scipy")  # judge and draw; no run imports them
_OF_STRATEGIES = ("torch_checkpointing", "torchsnapshot")  # used by the runs that save with them


def environment(run_dir: Path) -> dict[str, Any]:
    """The content of environment.json. `math_kernels` is present only where the user set such
    variables; records of earlier versions do not have it.
    """
    chosen = kernel_choices()
    return (
        _machine()
        | ({"math_kernels": chosen} if chosen else {})
        | {"file_system": file_system(run_dir)}
    )


@cache
def _machine() -> dict[str, Any]:
    """The part that is the same for every run of this process."""
    return {
        "ecrl": __version__,
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": {
            "model": _cpu_model(),
            "logical": psutil.cpu_count(),
            "physical": psutil.cpu_count(logical=False),
        },
        "memory_bytes": psutil.virtual_memory().total,
        "swap_bytes": psutil.swap_memory().total,
        "gpus": _gpus(),
        "git_revision": _git_revision(),
        "source_sha256": source_sha256(),
    }


def code_revision() -> str:
    """The version of ECRL, with the git revision if it runs from a checkout."""
    return f"ecrl {__version__}" + (f" {revision}" if (revision := _git_revision()) else "")


def file_system(path: Path) -> dict[str, str]:
    """Type, mount point and mount options of the file system that holds `path`: they determine what
    fsync guarantees.
    """
    here = path.resolve()
    mounts = [
        line.split(" ") for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    ]
    holding = [m for m in mounts if here.is_relative_to(m[1].replace("\\040", " "))]
    _, point, kind, options, *_ = max(holding, key=lambda m: len(m[1]))
    return {"type": kind, "mount_point": point, "options": options}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )


def _gpus() -> list[dict[str, str]]:
    """Name, uuid, driver and memory (with its unit) of each GPU that nvidia-smi shows."""
    if not shutil.which("nvidia-smi"):
        return []
    query = [
        "nvidia-smi",
        "--query-gpu=name,uuid,driver_version,memory.total",
        "--format=csv,noheader",
    ]
    output = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False).stdout
    rows = [line.split(", ") for line in output.splitlines() if line.count(", ") == 3]
    return [dict(zip(("name", "uuid", "driver", "memory"), row, strict=True)) for row in rows]


def _git_revision() -> str | None:
    """The git revision of ECRL's source if it runs from a checkout, with `-dirty` if there are
    uncommitted changes; None otherwise.
    """
    here = Path(__file__).resolve().parent
    if not shutil.which("git"):
        return None
    command = [
        "git",
        "-C",
        str(here),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=40",
        "--exclude=*",
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return result.stdout.strip() or None


def disagreements(layouts: Mapping[str, RunLayout], code_alone: bool = False) -> dict[str, str]:
    """By name, the existing runs that were made by other code or on another machine, each with the
    differences as text. Runs that agree are left out.

    `code_alone`: compare the code only, because the runs are executed on a machine other than this
    one.
    """
    begun = {name: layout for name, layout in layouts.items() if layout.config.exists()}
    found = {name: _disagreement(layout, code_alone) for name, layout in begun.items()}
    return {name: text for name, text in found.items() if text}


def _disagreement(layout: RunLayout, code_alone: bool) -> str:
    try:
        there = read_json(layout.environment)
    except (FileNotFoundError, EcrlError):
        return "environment.json is missing or damaged"
    if not isinstance(there, dict):
        return "environment.json is no environment"
    here = environment(layout.root)
    if code_alone:
        there, here = (
            {key: found.get(key) for key in ("git_revision", "source_sha256")}
            for found in (there, here)
        )
    # The source digest decides where it is known: a git revision changes with every document, and
    # two dirty trees share one. Swap changes no result, nor do runs beside this one.
    ignored = "git_revision" if there.get("source_sha256") else "source_sha256"
    idle = [f"packages.{name}" for name in _idle_packages(layout)]
    return ", ".join(differences(there, here, (ignored, "swap_bytes", RUNS_AT_ONCE, *idle)))


def _idle_packages(layout: RunLayout) -> tuple[str, ...]:
    """The packages of environment.json that take no part in the run: installing or updating one is
    no change of it.
    """
    try:
        strategy = STRATEGIES.of(read_run_config(layout).config.checkpoint.strategy)
    except EcrlError:
        return ()
    used = strategy.checkpointer.modules if strategy.checkpointer else ()
    return (*_ELSEWHERE, *(name for name in _OF_STRATEGIES if name not in used))


def differences(
    there: Mapping[str, Any], here: Mapping[str, Any], ignored: Collection[str] = ()
) -> list[str]:
    """`key A there and B here` for each dotted key whose values differ. `ignored` keys are left out
    with everything below them.
    """
    a, b = dict(flat(there)), dict(flat(here))
    below = tuple(f"{name}." for name in ignored)
    keys = [
        key
        for key in {**a, **b}
        if key not in ignored and not key.startswith(below) and a.get(key) != b.get(key)
    ]
    return [f"{key} {shown(a.get(key), 20)} there and {shown(b.get(key), 20)} here" for key in keys]
