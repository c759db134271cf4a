"""Where runs and sweeps live: named by their content, so that starting the same thing again finds what is there."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from ecrl_cli.config.identity import run_id, run_name
from ecrl_cli.config.schema import RunConfig

OUTPUTS = Path("outputs")


def run_directory(config: RunConfig) -> Path:
    """A single run's folder: `run_dir`, or outputs/<run name>."""
    return Path(config.run_dir).expanduser() if config.run_dir else OUTPUTS / run_name(config)


def sweep_directory(configs: Sequence[RunConfig], matrix: str) -> Path:
    """A sweep's folder: `run_dir`, or outputs/<matrix>, or outputs/<suite>-<hash of the runs>."""
    if configs[0].run_dir:
        return Path(configs[0].run_dir).expanduser()
    return OUTPUTS / (matrix or f"{_common_suite(configs)}-{_content(configs)}")


def _common_suite(configs: Sequence[RunConfig]) -> str:
    suites = {config.suite_name for config in configs}
    return (suites.pop() or "sweep") if len(suites) == 1 else "sweep"


def _content(configs: Sequence[RunConfig]) -> str:
    return hashlib.sha256("\n".join(sorted(run_id(config) for config in configs)).encode()).hexdigest()[:8]
