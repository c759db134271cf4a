"""What a child process may know of the environment: an allow-list. No secret travels, and no variable wins over the configuration."""

from __future__ import annotations

import os
from pathlib import Path

ALLOWED = frozenset(
    """
    PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TERM TMPDIR VIRTUAL_ENV LD_LIBRARY_PATH LD_PRELOAD XDG_CACHE_HOME
    PYTHONPATH PYTHONHASHSEED PYTHONWARNINGS PYTHONDONTWRITEBYTECODE TORCH_HOME CUBLAS_WORKSPACE_CONFIG
    SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE
    """.split()  # noqa: SIM905 - thirty quoted words in brackets would be harder to read
)
ALLOWED_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_")
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
    return name in ALLOWED or name.startswith(ALLOWED_PREFIXES) or name.upper() in ALLOWED_ANY_CASE
