"""`ecrl doctor [DIR]`: what this machine gives a run, in about five seconds, and what follows from
each answer.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import platform
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import google_crc32c
import psutil

from ecrl_cli.checkpoint.format.hashing import TITLES, hexdigest
from ecrl_cli.cli.console import Parser, out
from ecrl_cli.config.estimates import human_bytes
from ecrl_cli.errors import ConfigError, shown
from ecrl_cli.linux.prerequisites import PREREQUISITES, Prerequisite, program
from ecrl_cli.runs.environment import file_system
from ecrl_cli.storage.durable import sync

GOOD, NOTE, BAD = "ok", "note", "bad"
# File systems that keep nothing when the power goes.
_VOLATILE = ("tmpfs", "ramfs", "devtmpfs")
# No flash or disk with a working barrier answers fsync of a changed block this fast; a write cache
# that power loss empties does.
_HONEST_FSYNC_S = 20e-6
_FSYNCS = 16
_BLOCK = 4096
_SMALL_SHM = 1 << 30
_FEW_FILES = 256
_PYTHON = (3, 11)
# Runs in a process of its own: torch may be missing or broken, and its import takes most of the
# time.
_TORCH = """
import json, sys, time
began = time.perf_counter()
import torch
facts = {
    "version": torch.__version__,
    "import_s": time.perf_counter() - began,
    "cuda_build": torch.version.cuda,
    "capability": torch.backends.cpu.get_cpu_capability(),
    "threads": torch.get_num_threads(),
}
gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
facts["gpus"] = [torch.cuda.get_device_name(i) for i in range(gpus)]
import torch.distributed as dist
facts["gloo"] = dist.is_available() and dist.is_gloo_available()
facts["nccl"] = dist.is_available() and dist.is_nccl_available()
if facts["gloo"]:
    try:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        one = torch.ones(4)
        dist.all_reduce(one)
        facts["reduced"] = float(one.sum()) == 4.0
        dist.destroy_process_group()
    except Exception as error:
        facts["gloo_error"] = str(error).splitlines()[0]
print(json.dumps(facts))
"""


@dataclass(frozen=True)
class DoctorLine:
    """One answer: `level` is ok, note (a run works, with the stated limit) or bad (a run cannot
    work).
    """

    level: str
    name: str
    fact: str
    follows: str = ""


def doctor(argv: Sequence[str]) -> int:
    """Examines the machine and DIR, where runs would be written (default: the current folder). Exit
    code 1 where a run cannot work.
    """
    parser = Parser(prog="ecrl doctor", add_help=False, allow_abbrev=False)
    parser.add_argument("folder", nargs="?", type=Path, default=Path())
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args(list(argv))
    if not flags.folder.is_dir():
        raise ConfigError(
            shown(str(flags.folder)),
            "is not a folder",
            "name an existing folder in which runs are to be written",
        )
    lines = [line for check in _CHECKS for line in check()]
    # torch last: its import would disturb what is measured
    lines += [*_disk(flags.folder), *_torch()]
    code = 1 if any(line.level == BAD for line in lines) else 0
    if flags.json:
        sys.stdout.write(
            json.dumps({"exit_code": code, "lines": [asdict(line) for line in lines]}, indent=2)
            + "\n"
        )
        return code
    width = max(len(line.name) for line in lines)
    for line in lines:
        out(
            f"{line.level:<5} {line.name:<{width}}  {line.fact}"
            + (f"\n{'':<{width + 8}}{line.follows}" if line.follows else "")
        )
    return code


def _python() -> Iterator[DoctorLine]:
    version = platform.python_version()
    if sys.version_info >= _PYTHON:
        yield DoctorLine(GOOD, "python", version)
    else:
        yield DoctorLine(BAD, "python", version, "ECRL needs Python 3.11 or newer")


def _processor() -> Iterator[DoctorLine]:
    usable = len(os.sched_getaffinity(0))
    quota = _cpu_quota()
    fact = f"{usable} of {os.cpu_count()} usable" + (
        f", limited to the time of {quota:.3g} by the control group" if quota else ""
    )
    if min(usable, quota or usable) < 2:
        yield DoctorLine(
            NOTE,
            "cores",
            fact,
            "two ranks take turns on one core: exact all the same, but times mean little",
        )
    else:
        yield DoctorLine(GOOD, "cores", fact)
    load = os.getloadavg()[0]
    if load > usable / 2:
        yield DoctorLine(
            NOTE,
            "load",
            f"{load:.1f} over the last minute",
            "the machine is busy: measure nothing now",
        )
    flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    found = [name for name in ("avx2", "avx512f", "sha_ni", "sha2") if name in flags]
    data = b"\0" * (8 << 20)
    rates = []
    for title, digest in TITLES.items():
        began = time.perf_counter()
        hexdigest(title, data)
        rates.append(f"{digest} {len(data) / (time.perf_counter() - began) / 1e9:.1f}")
    pure = google_crc32c.implementation == "python"
    slow = (
        "google-crc32c has no compiled part here: a save takes a second for each 10 MB; install a"
        " wheel of it"
        if pure
        else ""
    )
    facts = (
        f"{' '.join(found) or 'none of avx2, avx512f, sha'}; {' and '.join(rates)} GB/s on one core"
    )
    yield DoctorLine(NOTE if slow else GOOD, "instructions", facts, slow)


def _cpu_quota() -> float | None:
    """Cores' worth of time that the control group (version 2) allows; None without a limit."""
    try:
        most, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()
        return None if most == "max" else int(most) / int(period)
    except (OSError, ValueError):
        return None


def _memory() -> Iterator[DoctorLine]:
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    yield DoctorLine(
        GOOD,
        "memory",
        f"{human_bytes(memory.available)} of {human_bytes(memory.total)} available, swap"
        f" {human_bytes(swap.total)}",
    )
    shm = Path("/dev/shm")
    if not shm.is_dir():
        yield DoctorLine(
            BAD,
            "shared memory",
            "/dev/shm is missing",
            "checkpoint=overlapped and checkpoint=in_memory stage there; mount a tmpfs",
        )
        return
    free = shutil.disk_usage(shm).free
    small = free < _SMALL_SHM
    follows = (
        f"{human_bytes(free)} holds the state of few ranks: in a container give --shm-size"
        if small
        else ""
    )
    yield DoctorLine(
        NOTE if small else GOOD, "shared memory", f"{human_bytes(free)} free in /dev/shm", follows
    )


def _limits() -> Iterator[DoctorLine]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = float("inf") if hard == resource.RLIM_INFINITY else hard
    if most < _FEW_FILES:
        yield DoctorLine(
            NOTE,
            "open files",
            f"limit {soft}, at most {hard}",
            "a run with many ranks is refused: raise the hard limit (ulimit -Hn)",
        )
    else:
        yield DoctorLine(
            GOOD,
            "open files",
            f"limit {soft}, may be raised to {'any number' if most == float('inf') else hard}",
        )
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if processes != resource.RLIM_INFINITY and processes < _FEW_FILES:
        yield DoctorLine(
            NOTE,
            "processes",
            f"limit {processes}",
            "torch starts threads per core in each rank, which count: raise it (ulimit -u)",
        )


def _clocks() -> Iterator[DoctorLine]:
    wall, monotonic = time.time_ns(), time.monotonic_ns()
    time.sleep(0.1)
    gone, passed = time.time_ns() - wall, time.monotonic_ns() - monotonic
    apart = abs(gone - passed) / passed
    source = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    name = source.read_text(encoding="utf-8").strip() if source.is_file() else "unknown source"
    if apart > 0.01:
        yield DoctorLine(
            NOTE,
            "clocks",
            f"wall clock {apart:.1%} apart from the monotonic one within 0.1 s ({name})",
            "verify will find times that disagree",
        )
    else:
        yield DoctorLine(GOOD, "clocks", f"wall and monotonic clock agree ({name})")


def _loopback() -> Iterator[DoctorLine]:
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=2),
        ):
            yield DoctorLine(GOOD, "loopback", "ranks can talk to each other on 127.0.0.1")
    except OSError as error:
        yield DoctorLine(
            BAD, "loopback", f"{error}", "ranks talk through it: bring the loopback interface up"
        )


def _tools() -> Iterator[DoctorLine]:
    """Tools that only parts of ECRL need; packages by the extra that brings them."""
    for need in PREREQUISITES.values():
        if not need.extra:
            reason = need.absent()
            yield (
                _needed(need.name, reason, need)
                if reason
                else DoctorLine(GOOD, need.name, program(need.name) or "works")
            )
    for extra in dict.fromkeys(need.extra for need in PREREQUISITES.values() if need.extra):
        packages = [need for need in PREREQUISITES.values() if need.extra == extra]
        absent = next(((need, reason) for need in packages if (reason := need.absent())), None)
        name = f"extra {extra}"
        yield (
            _needed(name, absent[1], absent[0])
            if absent
            else DoctorLine(GOOD, name, " ".join(need.name for need in packages))
        )


def _needed(name: str, reason: str, need: Prerequisite) -> DoctorLine:
    return DoctorLine(NOTE, name, reason, f"needed for {need.needed_for}: {need.remedy}")


def _disk(folder: Path) -> Iterator[DoctorLine]:
    """The folder's file system: kind, room, what fsync costs (so whether it reaches a disk), and
    whether O_DIRECT works.
    """
    mount = file_system(folder)
    room = shutil.disk_usage(folder).free
    yield DoctorLine(
        GOOD if room > 1 << 30 else NOTE,
        "disk",
        f"{human_bytes(room)} free on {mount['type']} at {mount['mount_point']}",
    )
    try:
        with tempfile.TemporaryDirectory(prefix=".ecrl-doctor-", dir=folder) as scratch:
            yield _fsync(Path(scratch) / "block", mount["type"])
            yield _direct(Path(scratch) / "direct")
    except OSError as error:
        yield DoctorLine(
            BAD,
            "write",
            f"{folder}: {error.strerror}",
            "runs are written here: name a folder in which you may write",
        )


def _fsync(path: Path, kind: str) -> DoctorLine:
    times = []
    with path.open("wb", buffering=0) as file:
        for number in range(_FSYNCS):
            file.seek(0)
            file.write(bytes([number]) * _BLOCK)
            began = time.perf_counter()
            sync(file.fileno())
            times.append(time.perf_counter() - began)
    median = statistics.median(times)
    fact = f"{median * 1e3:.3g} ms (median of {_FSYNCS}, longest {max(times) * 1e3:.3g} ms)"
    if kind in _VOLATILE:
        return DoctorLine(
            NOTE,
            "fsync",
            fact,
            f"{kind} is memory: nothing outlives a reboot, and the cost of durability reads as"
            " nothing",
        )
    if median < _HONEST_FSYNC_S:
        return DoctorLine(
            NOTE,
            "fsync",
            fact,
            "faster than a disk can be: it returns before the data are durable, so power loss may"
            " undo a commit",
        )
    return DoctorLine(GOOD, "fsync", fact)


def _direct(path: Path) -> DoctorLine:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
        try:
            with mmap.mmap(-1, _BLOCK) as aligned:
                os.write(fd, aligned)
        finally:
            os.close(fd)
    except OSError as error:
        return DoctorLine(
            NOTE,
            "direct I/O",
            f"refused ({error.strerror})",
            "checkpoints are written through the page cache",
        )
    return DoctorLine(GOOD, "direct I/O", "works")


def _die_with_parent() -> Iterator[DoctorLine]:
    """PR_SET_PDEATHSIG, by which a rank dies with its supervisor; containers with strict filters
    may refuse it.
    """
    pr_get_pdeathsig = 2
    answer = ctypes.c_int()
    if ctypes.CDLL(None, use_errno=True).prctl(pr_get_pdeathsig, ctypes.byref(answer)) == 0:
        yield DoctorLine(GOOD, "parent death", "children can be made to die with their parent")
    else:
        yield DoctorLine(
            BAD,
            "parent death",
            "prctl is refused",
            "ranks would outlive a killed supervisor: allow prctl in the container's filter",
        )


def _torch() -> Iterator[DoctorLine]:
    asked = subprocess.run(
        [sys.executable, "-c", _TORCH], capture_output=True, text=True, check=False
    )
    if asked.returncode:
        reason = (
            asked.stderr.strip().splitlines()[-1]
            if asked.stderr.strip()
            else f"ended with {asked.returncode}"
        )
        way = (
            "ecrl train and study need it (pip install torch torchvision, or ecrl[train]); verify,"
            " report and audit work without"
        )
        yield DoctorLine(BAD, "torch", reason, way)
        return
    facts = json.loads(asked.stdout)
    yield DoctorLine(
        GOOD,
        "torch",
        f"{facts['version']}, kernels {facts['capability']}, imported in {facts['import_s']:.1f} s",
    )
    if facts.get("reduced"):
        yield DoctorLine(GOOD, "gloo", "a group of one reduced a tensor")
    else:
        why = facts.get("gloo_error") or (
            "a sum came out wrong" if facts["gloo"] else "not in this build"
        )
        yield DoctorLine(BAD, "gloo", why, "ranks exchange gradients by it")
    by_gloo = "" if facts["gpus"] and facts["nccl"] else "ranks exchange gradients by gloo"
    built = "in this build" if facts["nccl"] else "not in this build"
    yield DoctorLine(
        GOOD if not by_gloo else NOTE,
        "nccl",
        built if facts["gpus"] else f"{built}, no GPU to use it on",
        by_gloo,
    )
    if facts["gpus"]:
        yield DoctorLine(GOOD, "gpu", f"{len(facts['gpus'])}: {facts['gpus'][0]}")
    else:
        yield DoctorLine(
            NOTE,
            "gpu",
            f"none (CUDA build {facts['cuda_build'] or 'no'})",
            "runs train on the processor: device=cpu",
        )


_CHECKS: tuple[Callable[[], Iterator[DoctorLine]], ...] = (
    _python,
    _processor,
    _memory,
    _limits,
    _clocks,
    _loopback,
    _die_with_parent,
    _tools,
)
