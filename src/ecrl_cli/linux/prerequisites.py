"""Things that parts of ECRL need and a machine may lack: programs, libraries, devices, privileges,
packages. Plans, skips and `ecrl doctor` ask here.
"""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from ecrl_cli.linux.namespaces import private_command

_PROBE_S = 30.0  # a probe takes milliseconds
_DAEMONS = ("munged", "slurmctld", "slurmd")
ALTERNATIVES = {"chromium": ("chromium", "chromium-browser", "google-chrome")}


@dataclass(frozen=True)
class Prerequisite:
    """`absent()`: why it cannot be used here; empty if it can. `needed_for`: what is left out
    without it. `package`: the Debian package that brings it; `extra`: the extra of ECRL that does;
    `step`: what to do where neither does.
    """

    name: str
    absent: Callable[[], str]
    needed_for: str
    package: str = ""
    extra: str = ""
    step: str = ""

    @property
    def remedy(self) -> str:
        return (
            f"apt-get install {self.package}"
            if self.package
            else f"pip install 'ecrl[{self.extra}]'"
            if self.extra
            else self.step
        )


def program(name: str) -> str:
    """The path of a program on the PATH, under its name or another that it has; empty if there is
    none.
    """
    found = next(
        (path for each in ALTERNATIVES.get(name, (name,)) if (path := shutil.which(each))), None
    )
    # Daemons are started by their whole path, and lie where a user's PATH does not reach.
    return found or (name in _DAEMONS and shutil.which(name, path="/usr/sbin:/sbin")) or ""


def lacking(*names: str) -> str:
    """Why the first of `names` that cannot be used here cannot, and the way out, in one line; empty
    if all can.

    A name that is not in PREREQUISITES is a Python package that another package asks for.
    """
    for name in names:
        need = PREREQUISITES.get(name) or Prerequisite(
            name, partial(_no_package, name), "", step=f"pip install {name}"
        )
        if reason := need.absent():
            return f"{reason} ({need.remedy})"
    return ""


def _no_program(*names: str) -> str:
    return next((f"{name} is not installed" for name in names if not program(name)), "")


def _no_module(name: str, module: str = "") -> str:
    try:
        return "" if find_spec(module or name) else f"{name} is not installed"
    except ModuleNotFoundError:  # of a package above it
        return f"{name} is not installed"


def _no_package(name: str) -> str:
    """The name by which pip calls it: what it brings may have another name (mosaicml-streaming:
    streaming).
    """
    if name.isidentifier():
        return _no_module(name)
    try:
        return "" if version(name) else f"{name} is not installed"
    except PackageNotFoundError:
        return f"{name} is not installed"


def _no_device(path: str, title: str) -> str:
    return "" if Path(path).exists() else f"no {title}: {path} does not exist"


def _no_root() -> str:
    return "" if os.geteuid() == 0 else f"needs root, this is uid {os.geteuid()}"


def _no_libfuse() -> str:
    return (
        ""
        if ctypes.util.find_library("fuse3") or ctypes.util.find_library("fuse")
        else "libfuse is not installed"
    )


def _refusal(fact: str, command: list[str]) -> str:
    """`fact`, and the last line of what `command` says where it fails; empty if it goes well."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_PROBE_S,
        )
    except subprocess.TimeoutExpired:
        return f"{fact}: no answer in {_PROBE_S:g} s"
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return f"{fact}: {lines[-1][:100]}" if done.returncode else ""


def _no_strace() -> str:
    found = program("strace")
    return (
        _refusal("strace may not trace", [found, "-f", "-o", os.devnull, "true"])
        if found
        else _no_program("strace")
    )


def _no_private_mounts() -> str:
    code = "from ecrl_cli.linux.namespaces import private_mounts; private_mounts()"
    return _refusal("no private mounts", [sys.executable, "-c", code])


def _no_private_network() -> str:
    return _refusal("no network namespace", private_command([sys.executable, "-I", "-S", "-c", ""]))


_CONTAINER = "run it as root; in a container, with --privileged"
_TRACKER = "tracker={}"
_JOBS = "the study frameworks, its jobs in that framework"
_CHECKPOINTER = "checkpoint={}, and studies that hold the store against it"
_PACKAGES = (
    ("mfusepy", "", "rigs", "the study power-loss, arm blocks"),
    (
        "hydra-submitit-launcher",
        "hydra_plugins.hydra_submitit_launcher",
        "slurm",
        "hydra/launcher=submitit_local and submitit_slurm",
    ),
    ("mkdocs", "", "docs", "make docs"),
    ("tensorboard", "", "tensorboard", _TRACKER.format("tensorboard")),
    ("mlflow", "", "mlflow", _TRACKER.format("mlflow")),
    ("wandb", "", "wandb", _TRACKER.format("wandb")),
    ("opentelemetry-sdk", "opentelemetry.sdk", "otel", _TRACKER.format("otel")),
    (
        "opentelemetry-exporter-otlp-proto-http",
        "opentelemetry.exporter.otlp.proto.http",
        "otel",
        "tracker=otel, over the network",
    ),
    ("ckpt-chaos", "ckpt_chaos", "rivals", "the study rivals"),
    ("pytest-torch", "pytest_torch", "rivals", "the study rivals"),
    ("lightning", "", "frameworks", _JOBS),
    ("accelerate", "", "frameworks", _JOBS),
    ("transformers", "", "frameworks", _JOBS),
    ("torchdata", "", "frameworks", _JOBS),
    ("torch_checkpointing", "", "checkpointers", _CHECKPOINTER.format("torch_checkpointing")),
    ("torchsnapshot", "", "checkpointers", _CHECKPOINTER.format("torchsnapshot")),
    ("aiofiles", "", "checkpointers", "torchsnapshot"),
    ("importlib_metadata", "", "checkpointers", "torchsnapshot"),
    ("nest_asyncio", "", "checkpointers", "torchsnapshot"),
    ("jsonschema", "", "dev", "the tests of the recorder's schema"),
)
PREREQUISITES: dict[str, Prerequisite] = {
    need.name: need
    for need in (
        Prerequisite(
            "root", _no_root, "the study power-loss on real file systems", step="run it as root"
        ),
        Prerequisite(
            "private mounts",
            _no_private_mounts,
            "the studies power-loss and io-errors on file systems of their own",
            step=_CONTAINER,
        ),
        Prerequisite("private network", _no_private_network, "failure=partition", step=_CONTAINER),
        Prerequisite(
            "loop devices",
            partial(_no_device, "/dev/loop-control", "loop devices"),
            "the study power-loss on real file systems",
            step="modprobe loop; in a container, --privileged",
        ),
        Prerequisite(
            "/dev/fuse",
            partial(_no_device, "/dev/fuse", "FUSE"),
            "the study power-loss, arm blocks",
            step="modprobe fuse; in a container, --privileged",
        ),
        Prerequisite(
            "libfuse", _no_libfuse, "the study power-loss, arm blocks", package="libfuse3-3"
        ),
        *(
            Prerequisite(
                name,
                partial(_no_program, name),
                f"the study power-loss on {name.partition('.')[2]}",
                package=package,
            )
            for name, package in (
                ("mkfs.ext4", "e2fsprogs"),
                ("mkfs.xfs", "xfsprogs"),
                ("mkfs.btrfs", "btrfs-progs"),
            )
        ),
        Prerequisite(
            "strace",
            _no_strace,
            "the studies io-errors and hostile, arms sync and audit; the tests of system calls",
            package="strace",
        ),
        Prerequisite(
            "rsync",
            partial(_no_program, "rsync"),
            "the study corruption, copies made by rsync",
            package="rsync",
        ),
        Prerequisite(
            "chromium",
            partial(_no_program, "chromium"),
            "the tests of the page",
            package="chromium",
        ),
        Prerequisite(
            "unshare",
            partial(_no_program, "unshare"),
            "the test of a full disk",
            package="util-linux",
        ),
        Prerequisite(
            "fish", partial(_no_program, "fish"), "the test of its completion", package="fish"
        ),
        Prerequisite(
            "zsh", partial(_no_program, "zsh"), "the test of its completion", package="zsh"
        ),
        Prerequisite(
            "slurm",
            partial(_no_program, "sbatch", "srun"),
            "hydra/launcher=submitit_slurm, and runs on several nodes",
            package="slurm-client",
        ),
        Prerequisite(
            "slurm daemons",
            partial(_no_program, "munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol"),
            "the tests of Slurm",
            package="slurm-wlm munge",
        ),
        Prerequisite(
            "torch", partial(_no_module, "torch"), "training and most studies", extra="train"
        ),
        Prerequisite(
            "torchvision", partial(_no_module, "torchvision"), "training on pictures", extra="train"
        ),
        Prerequisite(
            "pytest",
            partial(_no_module, "pytest"),
            "the plugin that audits a test's command",
            extra="pytest",
        ),
        *(
            Prerequisite(name, partial(_no_module, name, module), purpose, extra=extra)
            for name, module, extra, purpose in _PACKAGES
        ),
    )
}
