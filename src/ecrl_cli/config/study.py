"""The resolved configuration of one study: converts and checks what Hydra composed; its identity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ecrl_cli.config.codec import encode
from ecrl_cli.config.convert import convert
from ecrl_cli.config.omegaconf_bridge import plain
from ecrl_cli.config.registry import did_you_mean, unknown
from ecrl_cli.config.schema import at_least
from ecrl_cli.config.studies import MOST, STUDIES, MiniBatchFailure, RecoveryOverhead, WriteLatency, study_keys
from ecrl_cli.errors import ConfigError, shown


@dataclass(frozen=True)
class StudyConfig:
    """`study`: one of `config.studies`. `workers`: processes that share the trials, where a study allows it (0: one per core).

    `trial`: run only the trial of this key, and print its record.
    """

    study: Any
    seed: int = field(default=1337, metadata={"minimum": 0, "maximum": 2**63 - 1})
    run_dir: str = ""
    workers: int = at_least(0, 0)
    trial: str = ""

    @property
    def name(self) -> str:
        return str(self.study.name)


@dataclass(frozen=True)
class _Around:
    """The keys beside `study.*`."""

    seed: int = field(default=1337, metadata={"minimum": 0, "maximum": 2**63 - 1})
    run_dir: str = ""
    workers: int = at_least(0, 0)
    trial: str = ""


def build_study(composed: Mapping[str, Any]) -> StudyConfig:
    """The study that `composed` describes. Raises ConfigError for every invalid key or value."""
    values = plain(composed)
    inner = values.pop("study", None)
    if not isinstance(inner, Mapping):
        raise ConfigError("study", "has no value", f"give one of {', '.join(STUDIES)}: study=NAME")
    name = inner.get("name")
    keys = study_keys(str(name))
    if keys is None:
        raise unknown("study", str(name), STUDIES)
    _refuse_unknown([str(key) for key in values], [f.name for f in fields(_Around)], "")
    _refuse_unknown([str(key) for key in inner], [f.name for f in fields(keys)], "study.")
    study = convert(keys, inner, "study.")
    _check_lists(study)
    _check_size(study)
    _check_source(study)
    _check_survivors(study)
    _check_casualties(study)
    return StudyConfig(study, **encode(convert(_Around, values)))


def _refuse_unknown(keys: list[str], known: list[str], prefix: str) -> None:
    for key in keys:
        if key not in known:
            listed = ", ".join(prefix + name for name in known if name != "name")
            raise ConfigError(prefix + key, f"unknown key {shown(prefix + key)}", f"{did_you_mean(key, known)} known: {listed}".strip())


def _check_lists(study: Any) -> None:
    for key, value in encode(study).items():
        if isinstance(value, list) and (not value or len(set(value)) < len(value)):
            raise ConfigError(f"study.{key}", f"must name at least one, each once, got {shown(value)}")


def _check_size(study: Any) -> None:
    if isinstance(study, WriteLatency) and study.seeds * study.checkpoints > MOST:
        fact = f"{study.seeds} seeds of {study.checkpoints} checkpoints are more than {MOST} saves per mode"
        raise ConfigError("study.checkpoints", fact, "lower one of them")


def _check_source(study: Any) -> None:
    if not isinstance(study, RecoveryOverhead) or study.source == "published":
        return
    if study.source != "typed":
        if not Path(study.source).expanduser().is_dir():
            raise ConfigError("study.source", f"{shown(study.source)} is no folder", "give published, typed, or the folder of a run or a sweep")
        return
    for key in ("mini_batch_s", "checkpoint_s"):
        if getattr(study, key) == 0:
            raise ConfigError(f"study.{key}", "is 0, and study.source=typed has no other", f"give the seconds: study.{key}=SECONDS")


def _check_survivors(study: Any) -> None:
    if isinstance(study, MiniBatchFailure) and max(study.survivors) >= study.replicas:
        fact = f"{max(study.survivors)} survivors of {study.replicas} workers: nobody would have died"
        raise ConfigError("study.survivors", fact, "lower it or raise study.replicas")


def _check_casualties(study: Any) -> None:
    if isinstance(study, RecoveryOverhead) and study.casualties >= min(study.workers):
        fact = f"{study.casualties} of {min(study.workers)} workers leave no survivor, and strategies are compared that need one"
        raise ConfigError("study.casualties", fact, "lower it, or leave so few out of study.workers")


def study_id(config: StudyConfig) -> str:
    """64 hex digits: the hash of what changes the trials, the study's keys and the seed."""
    text = json.dumps({"study": encode(config.study), "seed": config.seed}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def study_name(config: StudyConfig) -> str:
    """The folder's name: study, seed and eight hex digits of the study id."""
    return f"{config.name}-s{config.seed}-{study_id(config)[:8]}"
