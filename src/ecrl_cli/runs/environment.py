"""The environment of a run: versions, processor, memory, GPUs, file system, code revision. Without torch: versions come from package metadata."""

from __future__ import annotations

import platform
import shutil
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from ecrl_cli import __version__
from ecrl_cli.records.digests import source_sha256
from ecrl_cli.supervision.launch.child_environment import kernel_choices

PACKAGES = ("torch", "torchvision", "hydra-core", "omegaconf", "numpy", "pandas", "matplotlib", "scipy", "safetensors")


def environment(run_dir: Path) -> dict[str, Any]:
    """The content of environment.json. `math_kernels` is present only where the user set such variables; records of earlier versions do not have
    it.
    """
    chosen = kernel_choices()
    return _machine() | ({"math_kernels": chosen} if chosen else {}) | {"file_system": file_system(run_dir)}


@cache
def _machine() -> dict[str, Any]:
    """The part that is the same for every run of this process."""
    return {
        "ecrl": __version__,
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": {"model": _cpu_model(), "logical": psutil.cpu_count(), "physical": psutil.cpu_count(logical=False)},
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": _gpus(),
        "git_revision": _git_revision(),
        "source_sha256": source_sha256(),
    }


def code_revision() -> str:
    """The version of ECRL, with the git revision if it runs from a checkout."""
    return f"ecrl {__version__}" + (f" {revision}" if (revision := _git_revision()) else "")


def file_system(path: Path) -> dict[str, str]:
    """Type, mount point and mount options of the file system that holds `path`: they determine what fsync guarantees."""
    here = path.resolve()
    mounts = [line.split(" ") for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
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
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())


def _gpus() -> list[dict[str, str]]:
    if not shutil.which("nvidia-smi"):
        return []
    query = ["nvidia-smi", "--query-gpu=name,uuid,driver_version", "--format=csv,noheader"]
    output = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False).stdout
    rows = [line.split(", ") for line in output.splitlines() if line.count(", ") == 2]
    return [{"name": name, "uuid": uuid, "driver": driver} for name, uuid, driver in rows]


def _git_revision() -> str | None:
    """The git revision of ECRL's source if it runs from a checkout, with `-dirty` if there are uncommitted changes; None otherwise."""
    here = Path(__file__).resolve().parent
    if not shutil.which("git"):
        return None
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return result.stdout.strip() or None
