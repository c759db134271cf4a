"""What a reader takes a run for: names, numbers and the machine, each held against the second place that says it.

A label that is changed everywhere alike, with the ids computed anew, contradicts nothing: the seal is what shows that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import RecordError, shown
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import is_folder
from ecrl_cli.records.safe_read import read_whole
from ecrl_cli.verify.verdict import FindingBuilder
from ecrl_cli.verify.verification_input import Case

_COMPOSED = "config.yaml"
_MAX_COMPOSED = 2**18
# What neither a scale nor a variant changes: what Hydra composed is what the run is.
_AS_TYPED = (
    *("seed", "threads", "precision", "dataset.name", "dataset.size", "dataset.augment"),
    *("model.name", "model.stem", "model.depth", "model.dropout"),
    *("optimizer.name", "optimizer.lr", "optimizer.momentum", "optimizer.weight_decay", "optimizer.min_lr"),
    *("checkpoint.layout", "checkpoint.format", "checkpoint.keep", "write_mode.name", "variant.name", "recovery.name"),
)
_NAMES = ("suite_name", "scale.name", "scale.steps", "scale.batch", "scale.width")  # labels alone: in no id
_SCALED = {"target_steps": "steps", "global_batch": "batch", "model.width": "width"}  # as typed where the scale's factor is 1


def check_labels(case: Case, notes: FindingBuilder) -> None:
    """config.json against what Hydra composed, dataset.json and environment.json."""
    _check_composed(case, notes)
    record, config = case.run.dataset, case.run.stored.config
    if record and record.name != config.dataset.name:
        notes.broken(f"dataset.json is of {shown(record.name)}, config.json of {shown(config.dataset.name)}")
    if record and config.dataset.name == "fake" and record.size != config.dataset.size:
        notes.broken(f"dataset.json has {record.size} samples, config.json asks for {config.dataset.size}")
    _check_environment(case, notes)


def _check_composed(case: Case, notes: FindingBuilder) -> None:
    """A run that is called again under other names is not another run: then the two files may differ in those, and nobody can tell which is right."""
    folder = case.run.layout.hydra
    if not is_folder(folder) or not (folder / _COMPOSED).exists():
        return  # recorded without Hydra
    try:
        composed = yaml.load(read_whole(folder / _COMPOSED, _MAX_COMPOSED), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (RecordError, yaml.YAMLError, ValueError, OSError) as error:
        notes.missing(f".hydra/{_COMPOSED} cannot be read: {type(error).__name__}")
        return
    stored = read_json(case.run.layout.config)["config"]
    for key in (*_AS_TYPED, *_NAMES, *_unscaled(case.run.stored.config)):
        ours, theirs = _at(stored, key), _at(composed, key)
        if None in (ours, theirs) or _alike(ours, theirs):
            continue
        text = f"{key} is {shown(str(ours))} in config.json, {shown(str(theirs))} in .hydra/{_COMPOSED}"
        if key in _NAMES:
            notes.missing(f"{text}: which of them the run was made under is not known")
        else:
            notes.broken(text)


def _unscaled(config: RunConfig) -> Iterator[str]:
    for key, factor in _SCALED.items():
        if getattr(config.scale, factor) == 1.0 and not config.elastic.schedule:
            yield key


def _at(document: Any, key: str) -> Any:
    """The value at a dotted key; None where there is none, or none that can be compared."""
    for name in key.split("."):
        document = document.get(name) if isinstance(document, Mapping) else None
    return document if isinstance(document, (str, int, float, bool)) else None


def _alike(ours: Any, theirs: Any) -> bool:
    """YAML reads 1e-6 as text; a number is one however it is written."""
    if isinstance(ours, (int, float)) and isinstance(theirs, str):
        try:
            return float(theirs) == float(ours)
        except ValueError:
            return False
    return bool(ours == theirs)


def _check_environment(case: Case, notes: FindingBuilder) -> None:
    """That it is there, and says what it is expected to say."""
    path = case.run.layout.environment
    if not path.exists():
        notes.missing("environment.json is missing: what the run ran on is not known")
        return
    try:
        told = read_json(path)
    except (RecordError, OSError) as error:
        notes.missing(f"environment.json cannot be read: {type(error).__name__}")
        return
    if not isinstance(told, Mapping) or not isinstance(told.get("packages"), Mapping):
        notes.missing("environment.json is no environment")


def other_environment(case: Case) -> tuple[str, ...]:
    """What the run and its reference ran on differently, in words: what is equal bit for bit all the same, is equal."""
    if case.reference is None:
        return ()
    ours, theirs = _environment(case.run.layout.environment), _environment(case.reference.layout.environment)
    kernels = sorted({name for told in (ours, theirs) for name in _kernels(told)})
    names = ("source_sha256", "packages.torch", "machine", "cpu.model", *kernels)
    differing = [(name, _at(ours, name), _at(theirs, name)) for name in names if _at(ours, name) != _at(theirs, name)]
    return tuple(f"the reference ran with {name} {_value(there)}, this run with {_value(here)}" for name, here, there in differing)


def _kernels(told: Any) -> Iterator[str]:
    """The dotted keys of the choices of kernels on record. A variable's name has no dot."""
    chosen = told.get("math_kernels") if isinstance(told, Mapping) else None
    if isinstance(chosen, Mapping):
        yield from (f"math_kernels.{name}" for name in chosen if isinstance(name, str) and "." not in name)


def _value(found: Any) -> str:
    return "not set" if found is None else shown(str(found), 20)


def _environment(path: Any) -> Any:
    try:
        return read_json(path)
    except (RecordError, OSError):
        return {}
