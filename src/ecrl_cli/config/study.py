"""The resolved configuration of one study: converts and checks what Hydra composed; its
identity.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ecrl_cli.config.codec import encode
from ecrl_cli.config.convert import convert
from ecrl_cli.config.registry import did_you_mean, unknown
from ecrl_cli.config.schema import at_least
from ecrl_cli.config.studies import STUDIES, study_keys
from ecrl_cli.errors import ConfigError, shown


@dataclass(frozen=True)
class StudyConfig:
    """`study`: one of `config.studies`. `workers`: processes that share the trials, where a study
    allows it (0: one per core).

    `trial`: run only the trial of this key, and print its record.
    """

    study: Any = None
    seed: int = field(default=1337, metadata={"minimum": 0, "maximum": 2**63 - 1})
    run_dir: str = ""
    workers: int = at_least(0, 0)
    trial: str = ""

    @property
    def name(self) -> str:
        return str(self.study.name)


def build_study(composed: Mapping[str, Any]) -> StudyConfig:
    """The study that `composed` describes. Raises ConfigError for every invalid key or value."""
    from ecrl_cli.config.omegaconf_bridge import plain  # a report on studies needs no omegaconf

    values = plain(composed)
    inner = values.pop("study", None)
    if not isinstance(inner, Mapping):
        raise ConfigError("study", "has no value", f"give one of {', '.join(STUDIES)}: study=NAME")
    name = inner.get("name")
    keys = study_keys(str(name))
    if keys is None:
        raise unknown("study", str(name), STUDIES)
    _refuse_unknown(
        [str(key) for key in values], [f.name for f in fields(StudyConfig) if f.name != "study"], ""
    )
    _refuse_unknown([str(key) for key in inner], [f.name for f in fields(keys)], "study.")
    study = convert(keys, inner, "study.")
    for key, value in encode(study).items():
        if isinstance(value, list) and (not value or len(set(value)) < len(value)):
            raise ConfigError(
                f"study.{key}", f"must name at least one, each once, got {shown(value)}"
            )
    if hasattr(study, "refuse"):
        study.refuse()
    return replace(convert(StudyConfig, values), study=study)


def sized(name: str, trials: int, typed: Collection[str]) -> dict[str, int]:
    """The keys that `study.trials=TRIALS` sets in the study `name`. `typed`: keys that the user set
    (without `study.`), which stay.

    `SIZES` of a study are its numbers of repetitions: the first is what `trials` is elsewhere,
    where the study has no such key; the others get no larger than it. ConfigError for a study whose
    trials are a fixed list.
    """
    keys = study_keys(name)
    known: dict[str, Any] = {each.name: each for each in fields(keys)} if keys else {}
    sizes: tuple[str, ...] = getattr(keys, "SIZES", ())
    if "trials" not in known and not sizes:
        way = "study.every=K tries each K-th" if "every" in known else "leave study.trials out"
        raise ConfigError("study.trials", f"{name} tries a fixed list", way)
    found = {"trials": trials} if "trials" in known else {sizes[0]: trials}
    found |= {size: min(known[size].default, trials) for size in sizes if size not in found}
    return {
        key: max(value, int(known[key].metadata.get("minimum", 0)))
        for key, value in found.items()
        if key not in typed or key == "trials"
    }


def _refuse_unknown(keys: list[str], known: list[str], prefix: str) -> None:
    for key in keys:
        if key not in known:
            listed = ", ".join(prefix + name for name in known if name != "name")
            raise ConfigError(
                prefix + key,
                f"unknown key {shown(prefix + key)}",
                f"{did_you_mean(key, known)} known: {listed}".strip(),
            )


def study_id(config: StudyConfig) -> str:
    """64 hex digits: the hash of what changes the trials, the study's keys and the seed."""
    text = json.dumps(
        {"study": encode(config.study), "seed": config.seed}, sort_keys=True, separators=(",", ":")
    )
    return hashlib.sha256(text.encode()).hexdigest()


def study_name(config: StudyConfig) -> str:
    """The folder's name: study, seed and eight hex digits of the study id."""
    return f"{config.name}-s{config.seed}-{study_id(config)[:8]}"
