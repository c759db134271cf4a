"""A private network namespace for each attempt of a run with planned partitions: taking its loopback down affects nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable

from ecrl_cli.errors import ConfigError
from ecrl_cli.failures.registry import fault_kind
from ecrl_cli.linux import netns
from ecrl_cli.records.events import PlannedFailure


def parts(failures: Iterable[PlannedFailure]) -> bool:
    """Whether a planned failure needs a private network namespace for each attempt."""
    return any(fault_kind(entry.kind).needs_network for entry in failures)


def private(command: list[str]) -> list[str]:
    """`command`, run in a new network namespace."""
    return [sys.executable, "-I", "-S", netns.__file__, *command]


def check_network(failures: Iterable[PlannedFailure]) -> None:
    """ConfigError if a partition is planned and this machine does not let its user create a network namespace."""
    if not parts(failures):
        return
    tried = subprocess.run(private([sys.executable, "-I", "-S", "-c", ""]), capture_output=True, text=True, check=False)
    if tried.returncode:
        reason = (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
        remedy = "run it as root, let users make namespaces (sysctl user.max_net_namespaces, user.max_user_namespaces), or leave it out"
        raise ConfigError("failure", f"a partition needs a network namespace of its own, which is refused here ({reason})", remedy)
