"""A network of its own for each attempt of a run whose plan parts the ranks: what goes down there goes down nowhere else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable

from ecrl_cli.errors import ConfigError
from ecrl_cli.failures.registry import fault_kind
from ecrl_cli.linux import netns
from ecrl_cli.records.events import PlannedFailure


def parts(failures: Iterable[PlannedFailure]) -> bool:
    """Whether a failure is planned for which each attempt needs a network of its own."""
    return any(fault_kind(entry.kind).needs_network for entry in failures)


def private(command: list[str]) -> list[str]:
    """`command`, in a network namespace of its own."""
    return [sys.executable, "-I", "-S", netns.__file__, *command]


def check_network(failures: Iterable[PlannedFailure]) -> None:
    """ConfigError where a partition is planned and this machine does not let its user make a network namespace."""
    if not parts(failures):
        return
    tried = subprocess.run(private([sys.executable, "-I", "-S", "-c", ""]), capture_output=True, text=True, check=False)
    if tried.returncode:
        reason = (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
        remedy = "run it as root, let users make namespaces (sysctl user.max_net_namespaces, user.max_user_namespaces), or leave it out"
        raise ConfigError("failure", f"a partition needs a network namespace of its own, which is refused here ({reason})", remedy)
