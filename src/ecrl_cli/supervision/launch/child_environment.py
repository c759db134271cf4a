"""The environment of child processes: an allow-list, so that no secret is passed on and no variable
overrides the configuration.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

# Words split from a string: thirty quoted ones in brackets would be harder to read.
ALLOWED = frozenset(
    """
    PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TERM TMPDIR VIRTUAL_ENV
    LD_LIBRARY_PATH LD_PRELOAD XDG_CACHE_HOME
    PYTHONPATH PYTHONHASHSEED PYTHONWARNINGS PYTHONDONTWRITEBYTECODE TORCH_HOME
    SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE
    """.split()
)
ALLOWED_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_")
# These choose the kernels of torch and its libraries, and so may change results bitwise. Passed on
# as the user set them, and recorded.
KERNEL_CHOICES = frozenset(
    """
    ATEN_CPU_CAPABILITY MKL_CBWR MKL_ENABLE_INSTRUCTIONS OPENBLAS_CORETYPE NPY_DISABLE_CPU_FEATURES
    CUBLAS_WORKSPACE_CONFIG NVIDIA_TF32_OVERRIDE
    """.split()
)
KERNEL_PREFIXES = ("ONEDNN_", "DNNL_")
# oneDNN's diagnostic variables change no kernel
_NO_CHOICE = re.compile(r"_(VERBOSE(_.*)?|JIT_DUMP|JIT_PROFILE)$")
# A proxy's address may contain a password. It is passed on, because downloads need it, but never
# recorded.
ALLOWED_ANY_CASE = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")
# If all ranks are on one machine they use the loopback: a socket on another device could be reached
# from the network.
ON_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


def child_environment(root: Path | None, threads: int, *, alone: bool = True) -> dict[str, str]:
    """The environment of a process of the run in `root` (None: it serves several runs), with
    `threads` threads per pool.

    `alone`: all ranks of the run are on this machine; their sockets are then bound to the loopback,
    whatever the user has set.

    ECRL_RUN marks the process so that leftovers can be found and killed; ECRL_SUPERVISOR lets an
    orphan recognise the supervisor as its new parent.
    """
    kept = {name: value for name, value in os.environ.items() if _allowed(name)}
    kept |= {
        name: str(threads)
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    }
    kept |= {"PYTHONUNBUFFERED": "1", "ECRL_SUPERVISOR": str(os.getpid())}
    return kept | (ON_LOOPBACK if alone else {}) | ({"ECRL_RUN": str(root)} if root else {})


def _allowed(name: str) -> bool:
    return (
        name in ALLOWED | KERNEL_CHOICES
        or name.startswith((*ALLOWED_PREFIXES, *KERNEL_PREFIXES))
        or name.upper() in ALLOWED_ANY_CASE
    )


def kernel_choices() -> dict[str, str]:
    """The variables set here that choose the kernels of this process and its ranks."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name in KERNEL_CHOICES
        or (name.startswith(KERNEL_PREFIXES) and not _NO_CHOICE.search(name))
    }
