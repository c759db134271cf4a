"""Where a run's figures are also shown: one object per tracker. Torch-free.

From another package: a `TrackerKind` as an entry point in the group `ecrl.trackers`.
tests/contract/test_trackers.py checks each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ecrl_cli.config.registry import VariantRegistry, import_attribute
from ecrl_cli.errors import ConfigError
from ecrl_cli.linux.prerequisites import lacking


@dataclass(frozen=True, kw_only=True)
class TrackerKind:
    """`description`: one sentence, also the first of conf/tracker/NAME.yaml.

    `implementation`: "module:attribute" of a class with the interface of runs/tracking/sinks.py;
    empty: nothing is tracked. It is imported by the process that follows the run, never by the
    supervisor or a rank. `package`: what it imports, and `extra` the extra of ECRL that brings it.
    """

    name: str
    description: str
    implementation: str = ""
    package: str = ""
    extra: str = ""

    def load(self) -> Any:
        """Imports the class `implementation`."""
        return import_attribute("tracker", self.name, self.implementation)

    def refuse(self, place: str) -> None:
        """ConfigError where its package is not installed, or where `place`, which is recorded,
        holds a password.
        """
        if "@" in place.partition("://")[2].partition("/")[0]:
            raise ConfigError(
                "tracker.place",
                "holds a user or password, which would be recorded",
                "give them as the tracker's environment variables",
            )
        if self.package and lacking(self.package):
            raise ConfigError(
                "tracker",
                f"{self.name} needs the package {self.package}",
                f"pip install 'ecrl[{self.extra}]', or tracker=none",
            )


_SINKS = "ecrl_cli.runs.tracking.sinks"
NONE = TrackerKind(name="none", description="nowhere but in the records")
TENSORBOARD = TrackerKind(
    name="tensorboard",
    description="event files for TensorBoard",
    implementation=f"{_SINKS}:TensorBoard",
    package="tensorboard",
    extra="tensorboard",
)
MLFLOW = TrackerKind(
    name="mlflow",
    description="a run of MLflow",
    implementation=f"{_SINKS}:MLflow",
    package="mlflow",
    extra="mlflow",
)
WANDB = TrackerKind(
    name="wandb",
    description="a run of Weights & Biases, offline",
    implementation=f"{_SINKS}:WandB",
    package="wandb",
    extra="wandb",
)
PROMETHEUS = TrackerKind(
    name="prometheus",
    description="a text file that the node exporter of Prometheus reads",
    implementation=f"{_SINKS}:Prometheus",
)
OTEL = TrackerKind(
    name="otel",
    description="spans of OpenTelemetry: sessions, attempts, their start, saves",
    implementation="ecrl_cli.runs.tracking.spans:OpenTelemetry",
    package="opentelemetry-sdk",
    extra="otel",
)

TRACKERS = VariantRegistry(
    "tracker", "ecrl.trackers", TrackerKind, (NONE, TENSORBOARD, MLFLOW, WANDB, PROMETHEUS, OTEL)
)
