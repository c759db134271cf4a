"""Disks in memory, and private file systems on them that vanish with the process: memfd, loop
device, private mount namespace.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import struct
import subprocess
from contextlib import suppress
from pathlib import Path

from ecrl_cli.errors import EcrlError, shown
from ecrl_cli.linux.namespaces import LIBC, check

# Disk size in bytes (sparse), and the mkfs command. ext4's inode table is written at once; else a
# kernel thread would do it during the trials.
DISKS: dict[str, tuple[int, tuple[str, ...]]] = {
    "ext4": (
        64 * 2**20,
        ("mkfs.ext4", "-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0,nodiscard"),
    ),
    "xfs": (320 * 2**20, ("mkfs.xfs", "-q", "-f", "-K")),
    "btrfs": (256 * 2**20, ("mkfs.btrfs", "-q", "-f", "-K")),
}
MOUNT_DATA = {"ext4": "", "xfs": "", "btrfs": "nodiscard"}

_NUMBERS = itertools.count()
_LOOP_CONFIGURE, _LOOP_CTL_GET_FREE, _LO_FLAGS_AUTOCLEAR = 0x4C0A, 0x4C82, 4
# fd, block size, loop_info64 (number, type, key size, flags among it), reserved
_LOOP_CONFIG = struct.Struct("=II 40x III I 176x 64x")
_VOL_ARGS, _BTRFS_IOC_FORGET_DEV = 4096, 0x50009405
_FS_IOC_SHUTDOWN, _NO_LOG_FLUSH = 0x8004587D, 2


def mount(device: str, target: Path, kind: str, data: str = "") -> None:
    check(
        LIBC.mount(os.fsencode(device), os.fsencode(target), kind.encode(), 0, data.encode()),
        str(target),
    )


def unmount(target: Path) -> None:
    check(LIBC.umount2(os.fsencode(target), 0), str(target))


def sync_disk(folder: Path) -> None:
    """Write out the whole file system of `folder`."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        check(LIBC.syncfs(fd), str(folder))
    finally:
        os.close(fd)


def cut_off(mounted: Path, outside: Path) -> None:
    """Shut down the file system at `mounted` without writing its log. Raises OSError if it is not
    supported (btrfs: ENOTTY).

    Refuses the file system of `outside`: without the mount it would shut down the machine's own.
    """
    fd = os.open(mounted, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if os.fstat(fd).st_dev in {path.stat().st_dev for path in (outside, Path.cwd(), Path("/"))}:
            raise EcrlError(
                "power-loss", f"nothing is mounted at {shown(str(mounted))}", "report this"
            )
        fcntl.ioctl(fd, _FS_IOC_SHUTDOWN, struct.pack("=I", _NO_LOG_FLUSH))
    finally:
        os.close(fd)


def forget_devices() -> None:
    """Make btrfs forget the disks it has seen: an earlier state of the same file system must not
    count as a stale copy.
    """
    with suppress(FileNotFoundError):
        fd = os.open("/dev/btrfs-control", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.ioctl(fd, _BTRFS_IOC_FORGET_DEV, bytearray(_VOL_ARGS))
        finally:
            os.close(fd)


def memory_disk(nbytes: int) -> int:
    """An empty disk: the descriptor of a sparse file in memory."""
    # mkfs.btrfs takes two loop devices on files of equal name for one disk
    name = f"ecrl-disk-{os.getpid()}-{next(_NUMBERS)}"
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    os.ftruncate(fd, nbytes)
    return fd


class LoopDevice:
    """A block device on the file `fd`. The kernel frees it when it is no longer open or mounted."""

    def __init__(self, fd: int) -> None:
        self._fd, self.path = _attached(fd)

    def close(self) -> None:
        os.close(self._fd)


def _attached(backing: int) -> tuple[int, str]:
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(64):  # another process may take the free one first
            path = f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}"
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(
                    fd, _LOOP_CONFIGURE, _LOOP_CONFIG.pack(backing, 0, 0, 0, 0, _LO_FLAGS_AUTOCLEAR)
                )
                return fd, path
            except OSError as error:
                os.close(fd)
                if error.errno != errno.EBUSY:
                    raise
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "no loop device is free")


def make_filesystem(kind: str) -> int:
    """A new disk with an empty file system of that kind."""
    nbytes, command = DISKS[kind]
    disk = memory_disk(nbytes)
    device = LoopDevice(disk)
    try:
        done = subprocess.run(
            [*command, device.path],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        device.close()
    if done.returncode:
        raise EcrlError(
            "power-loss",
            f"{command[0]} failed: {shown(done.stderr.strip())}",
            "see what it says by hand",
        )
    return disk
