"""What a child process may know of the environment: an allow-list. No secret travels, and no variable wins over the configuration."""

from __future__ import annotations

import os
import re
from pathlib import Path

ALLOWED = frozenset(
    """
    PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TERM TMPDIR VIRTUAL_ENV LD_LIBRARY_PATH LD_PRELOAD XDG_CACHE_HOME
    PYTHONPATH PYTHONHASHSEED PYTHONWARNINGS PYTHONDONTWRITEBYTECODE TORCH_HOME
    SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE
    """.split()  # noqa: SIM905 - thirty quoted words in brackets would be harder to read
)
ALLOWED_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_")
# Each makes torch and its libraries compute with other kernels, and so may give other bits. They are the user's choice: passed on, and on record.
KERNEL_CHOICES = frozenset(
    """
    ATEN_CPU_CAPABILITY MKL_CBWR MKL_ENABLE_INSTRUCTIONS OPENBLAS_CORETYPE NPY_DISABLE_CPU_FEATURES
    CUBLAS_WORKSPACE_CONFIG NVIDIA_TF32_OVERRIDE
    """.split()  # noqa: SIM905
)
KERNEL_PREFIXES = ("ONEDNN_", "DNNL_")
_NO_CHOICE = re.compile(r"_(VERBOSE(_.*)?|JIT_DUMP|JIT_PROFILE)$")  # oneDNN's diagnosis changes no kernel
# A proxy's address may hold a password; without it no data set can be downloaded, so it travels, and is never recorded.
ALLOWED_ANY_CASE = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")
# Where all ranks are on one machine they talk over the loopback: a socket on another device can be reached from the network.
ON_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


def child_environment(root: Path | None, threads: int, *, alone: bool = True) -> dict[str, str]:
    """The environment of a process that works for the run in `root` (None: for several runs), with `threads` threads per pool.

    `alone`: whether all ranks of the run are on this machine; what they listen on is then the loopback, whatever was set.

    ECRL_RUN marks it for the sweep; ECRL_SUPERVISOR lets an orphan recognise its adopter.
    """
    kept = {name: value for name, value in os.environ.items() if _allowed(name)}
    kept |= {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    kept |= {"PYTHONUNBUFFERED": "1", "ECRL_SUPERVISOR": str(os.getpid())}
    return kept | (ON_LOOPBACK if alone else {}) | ({"ECRL_RUN": str(root)} if root else {})


def _allowed(name: str) -> bool:
    return name in ALLOWED | KERNEL_CHOICES or name.startswith((*ALLOWED_PREFIXES, *KERNEL_PREFIXES)) or name.upper() in ALLOWED_ANY_CASE


def kernel_choices() -> dict[str, str]:
    """The variables set here that choose the kernels of this process and of its ranks."""
    return {name: value for name, value in sorted(os.environ.items()) if _chooses_kernels(name)}


def _chooses_kernels(name: str) -> bool:
    return name in KERNEL_CHOICES or (name.startswith(KERNEL_PREFIXES) and not _NO_CHOICE.search(name))
