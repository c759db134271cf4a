"""Differences between a published setting and the runs at hand, computed per key from
configurations, environments and metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ecrl_cli.replication.report.values import published_setting
from ecrl_cli.report.formats import listed, printable
from ecrl_cli.report.model.run_record import Run

# Display names of the keys. Keys not listed are not compared.
WORDS = {
    "dataset.name": "data set",
    "dataset_size": "images",
    "model.name": "model",
    "model.width": "width",
    "target_steps": "steps",
    "global_batch": "batch",
    "world_size": "ranks",
    "seed": "seeds",
    "failure.kind": "failure",
    "failure.steps": "failure steps",
    "checkpoint.every": "steps per checkpoint",
    "checkpoint.max_inflight": "max in flight",
    "checkpoint.format": "checkpoint format",
    "write_mode.name": "write mode",
    "optimizer.name": "optimizer",
    "optimizer.lr": "learning rate",
    "precision": "precision",
    "dataset.augment": "augmentation",
    "elastic.schedule": "ranks by step",
    "storage.name": "storage",
    "supervision.launcher": "launcher",
    "supervision.nodes": "nodes",
    "device": "device",
    "backend": "backend",
    "ranks_per_gpu": "ranks per GPU",
    "torch": "torch",
    "python": "python",
    "cpu": "processor",
}
# One word per group of keys, for table columns.
GROUPS = {
    "data and model": ("dataset.name", "model.name", "dataset.augment"),
    "size": (
        "dataset_size",
        "model.width",
        "target_steps",
        "global_batch",
        "checkpoint.every",
        "checkpoint.max_inflight",
        "failure.steps",
    ),
    "ranks": ("world_size", "elastic.schedule"),
    "seeds": ("seed",),
    "failure": ("failure.kind",),
    "write path": ("checkpoint.format", "write_mode.name", "storage.name"),
    "training": ("optimizer.name", "optimizer.lr", "precision"),
    "launcher": ("supervision.launcher",),
    "machine": ("device", "backend", "ranks_per_gpu", "supervision.nodes", "cpu"),
    "versions": ("torch", "python"),
}
_FAILURE_KEYS = ("failure.kind", "failure.steps")  # compared on arms with failures
# compared on arms with checkpoints
_CHECKPOINT_KEYS = (
    "checkpoint.every",
    "checkpoint.max_inflight",
    "checkpoint.format",
    "write_mode.name",
)


@dataclass(frozen=True)
class SettingDifference:
    """One key set differently here; `measured`: all its values in the runs considered."""

    key: str
    published: Any
    measured: tuple[Any, ...]

    @property
    def word(self) -> str:
        return WORDS[self.key]

    def __str__(self) -> str:
        return (
            f"{self.word} {listed([shown(value) for value in self.measured])} instead of"
            f" {shown(self.published)}"
        )


def revision(run: Run) -> str:
    """The version and code revision that a run was made with."""
    version = run.environment.get("ecrl", "?")
    return f"ecrl {version} {run.environment.get('git_revision') or ''}".strip()


def facts(run: Run) -> dict[str, Any]:
    """This run's value for each key of WORDS. `device`, `backend`: `auto` is resolved from the
    recorded machine.
    """
    config, environment = run.config, run.environment
    found: dict[str, Any] = {key: config[key] for key in WORDS if key in config}
    for key in WORDS:
        group, _, name = key.partition(".")
        if name and name in config.get(group, {}):
            found[key] = config[group][name]
    found |= _devices(found, len(environment.get("gpus", ())))
    found |= {
        "torch": environment.get("packages", {}).get("torch"),
        "python": environment.get("python"),
    }
    found |= {
        "cpu": environment.get("cpu", {}).get("model"),
        "dataset_size": run.metrics.dataset_size if run.metrics else None,
    }
    return {key: value for key, value in found.items() if value is not None}


def _devices(known: dict[str, Any], gpus: int) -> dict[str, Any]:
    """Device of the ranks and their backend; where a machine has fewer GPUs than ranks, they
    share.
    """
    device = known.get("device")
    device = ("cuda" if gpus else "cpu") if device == "auto" else device
    backend = known.get("backend", "auto")
    backend = ("nccl" if device == "cuda" else "gloo") if backend == "auto" else backend
    ranks = known.get("world_size")
    shared = (
        {"ranks_per_gpu": -(-ranks // gpus)}
        if device == "cuda" and gpus and isinstance(ranks, int)
        else {}
    )
    return ({"device": device, "backend": backend} if device else {}) | shared


def differences(runs: Iterable[Run]) -> tuple[SettingDifference, ...]:
    """Every key in which the runs of published suites differ from the published setting, in the
    order of WORDS.
    """
    found: dict[tuple[str, str], SettingDifference] = {}
    by_suite: dict[str, list[Run]] = {}
    for run in runs:
        by_suite.setdefault(run.suite, []).append(run)
    for suite, members in by_suite.items():
        known = [facts(run) for run in members]
        for key, said in published_setting(suite).items():
            measured = _measured(key, members, known)
            if measured and any(
                _comparable(value) != _comparable(said.value) for value in measured
            ):
                _merge(found, SettingDifference(key, said.value, measured))
    return tuple(sorted(found.values(), key=lambda difference: list(WORDS).index(difference.key)))


def _merge(found: dict[tuple[str, str], SettingDifference], new: SettingDifference) -> None:
    """Merge suites that differ from the same published value into one difference with all their
    values.
    """
    ident = (new.key, shown(new.published))
    old = found.get(ident)
    values = {
        shown(value): value for value in ((*old.measured, *new.measured) if old else new.measured)
    }
    found[ident] = SettingDifference(new.key, new.published, tuple(values.values()))


def _measured(key: str, runs: Sequence[Run], known: Sequence[dict[str, Any]]) -> tuple[Any, ...]:
    """The distinct values of `key`; all seeds count as one value. Arms that the key does not
    concern are left out.
    """
    if key == "seed":
        return (tuple(sorted({int(run.seed) for run in runs if run.seed.isdigit()})),)
    found = [
        item[key]
        for run, item in zip(runs, known, strict=True)
        if key in item and _concerns(key, run)
    ]
    return tuple({shown(value): value for value in found}.values())


def _concerns(key: str, run: Run) -> bool:
    if key in _FAILURE_KEYS:
        return bool(
            run.config.get("variant", {}).get("failures")
            and run.config.get("failure", {}).get("kind") != "none"
        )
    if key == "checkpoint.max_inflight":
        return bool(run.config.get("checkpoint", {}).get("strategy") == "overlapped")
    if key in _CHECKPOINT_KEYS:
        return bool(run.config.get("checkpoint", {}).get("strategy") != "none")
    return (
        bool(run.config.get("elastic", {}).get("schedule")) if key == "elastic.schedule" else True
    )


def _comparable(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): item for key, item in value.items()}
    return tuple(value) if isinstance(value, list | tuple) else value


def shown(value: Any) -> str:
    """A setting formatted for readers."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        return ", ".join(f"{item} from step {key}" for key, item in value.items()) or "none"
    if isinstance(value, list | tuple):
        return "/".join(map(shown, value)) or "none"
    return f"{value:,}" if isinstance(value, int) else printable(value)


def in_short(found: Sequence[SettingDifference]) -> str:
    """For a column: only the groups; the values are given above the table."""
    keys = {difference.key for difference in found}
    return ", ".join(group for group, members in GROUPS.items() if keys & set(members)) or "nothing"


def in_full(found: Sequence[SettingDifference], suites: Iterable[str]) -> str:
    """For a table's heading: each difference with its values, and which published ones the reports
    leave out.
    """
    if not found:
        return "the published setting"
    said = {key: entry for suite in suites for key, entry in published_setting(suite).items()}
    unstated = [WORDS[key] for key in WORDS if key in said and not said[key].stated]
    text = "; ".join(map(str, found))
    return (
        f"{text}. Not stated in the report and taken from the authors' public configuration:"
        f" {', '.join(unstated)}."
    )
