"""Checks names, numbers and environment of a run against the second place that records them, and
reports where code or environment differ.

A label changed consistently everywhere, with ids recomputed, contradicts nothing: only the seal
shows that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import RecordError, plural, shown
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import is_folder
from ecrl_cli.records.safe_read import read_whole
from ecrl_cli.verify.verdict import FindingBuilder
from ecrl_cli.verify.verification_input import Case

_COMPOSED, _OVERRIDES = "config.yaml", "overrides.yaml"
_MAX_COMPOSED = 2**18
_UNREADABLE = (RecordError, yaml.YAMLError, ValueError, OSError)
_INTERPOLATION = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")
# Keys that neither a scale nor a variant changes: the values composed by Hydra are those of the
# run.
_AS_TYPED = (
    *(
        "seed",
        "threads",
        "precision",
        "dataset.name",
        "dataset.size",
        "dataset.augment",
        "dataset.held_out",
        "task.name",
    ),
    *("evaluate.every", "evaluate.batch"),
    *("model.name", "model.stem", "model.depth", "model.dropout"),
    *(
        "optimizer.name",
        "optimizer.lr",
        "optimizer.momentum",
        "optimizer.weight_decay",
        "optimizer.min_lr",
    ),
    *(
        "checkpoint.layout",
        "checkpoint.format",
        "checkpoint.keep",
        "write_mode.name",
        "variant.name",
        "recovery.name",
    ),
)
# labels only: part of no id
_NAMES = ("suite_name", "scale.name", "scale.steps", "scale.batch", "scale.width")
# as configured if the scale's factor is 1
_SCALED = {"target_steps": "steps", "global_batch": "batch", "model.width": "width"}


def check_labels(case: Case, notes: FindingBuilder) -> None:
    """Check config.json against Hydra's composed configuration, dataset.json and
    environment.json.
    """
    _check_composed(case, notes)
    record, config = case.run.dataset, case.run.stored.config
    if record and record.name != config.dataset.name:
        notes.broken(
            f"dataset.json is of {shown(record.name)}, config.json of {shown(config.dataset.name)}"
        )
    asked = config.dataset.size - config.dataset.held_out
    if record and config.dataset.name == "fake" and record.size != asked:
        notes.broken(
            f"dataset.json has {plural(record.size, 'sample')}, config.json asks for {asked}"
        )
    if record and case.reference and case.reference.dataset and record != case.reference.dataset:
        notes.broken("dataset.json is not that of the reference")
    _check_environment(case, notes)


def _check_composed(case: Case, notes: FindingBuilder) -> None:
    """Compare config.json with .hydra/config.yaml. A run repeated under other names is the same
    run: names may differ, but which is right is then unknown.
    """
    folder = case.run.layout.hydra
    if not is_folder(folder) or not (folder / _COMPOSED).exists():
        return  # recorded without Hydra
    try:
        composed = _loaded(folder / _COMPOSED)
    except _UNREADABLE as error:
        notes.missing(f".hydra/{_COMPOSED} cannot be read: {type(error).__name__}")
        return
    stored = read_json(case.run.layout.config)["config"]
    named = _named_by_its_parts(case.run.stored.config, folder)
    for key in (*_AS_TYPED, *_NAMES, *_unscaled(case.run.stored.config)):
        theirs, where = (
            (named, f"by .hydra/{_OVERRIDES}")
            if named and key == "suite_name"
            else (_resolved(composed, key), f"in .hydra/{_COMPOSED}")
        )
        ours = _at(stored, key)
        if None in (ours, theirs) or _alike(ours, theirs):
            continue
        text = f"{key} is {shown(str(ours))} in config.json, {shown(str(theirs))} {where}"
        if key in _NAMES:
            notes.missing(f"{text}: which of them the run was made under is not known")
        else:
            notes.broken(text)


def _named_by_its_parts(config: RunConfig, folder: Path) -> str | None:
    """The suite's name where a typed schedule replaced the suite's own (`+suite=cifar10-r18-late
    schedule=between`): ECRL then names the suite anew, and Hydra's composed configuration still has
    the old name. None where that was not typed, or what was typed is not on record.
    """
    try:
        overrides = _loaded(folder / _OVERRIDES)
    except _UNREADABLE:
        return None
    words = overrides if isinstance(overrides, list) else []
    typed = {word.partition("=")[0].lstrip("+") for word in words if isinstance(word, str)} & {
        "schedule",
        "suite_name",
    }
    if typed != {"schedule"}:
        return None
    from ecrl_cli.config.build import name_the_suite  # imports omegaconf, which no other run needs

    return name_the_suite(config, frozenset(typed)).suite_name


def _loaded(path: Path) -> Any:
    """The YAML document in `path`; one of `_UNREADABLE` if there is none."""
    return yaml.load(
        read_whole(path, _MAX_COMPOSED), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    )


def _unscaled(config: RunConfig) -> Iterator[str]:
    for key, factor in _SCALED.items():
        if getattr(config.scale, factor) == 1.0 and not config.elastic.schedule:
            yield key


def _at(document: Any, key: str) -> Any:
    """The value at a dotted key; None if there is none, or it is not a scalar."""
    for name in key.split("."):
        document = document.get(name) if isinstance(document, Mapping) else None
    return document if isinstance(document, (str, int, float, bool)) else None


def _resolved(composed: Any, key: str) -> Any:
    """Like `_at`, with each `${key}` replaced by the value there, since Hydra stores interpolations
    unresolved: a text that is nothing else takes the value's type. None for what only a resolver
    can tell (`${oc.env:SEED}`).
    """
    value = _at(composed, key)
    if not isinstance(value, str):
        return value
    if whole := _INTERPOLATION.fullmatch(value):
        return _at(composed, whole[1])
    text = _INTERPOLATION.sub(lambda found: str(_at(composed, found[1])), value)
    return None if "${" in text else text


def _alike(ours: Any, theirs: Any) -> bool:
    """Equality in which text that reads as a number equals that number: YAML reads 1e-6 as text."""
    if isinstance(ours, (int, float)) and isinstance(theirs, str):
        try:
            return float(theirs) == float(ours)
        except ValueError:
            return False
    return bool(ours == theirs)


def _check_environment(case: Case, notes: FindingBuilder) -> None:
    """environment.json exists and has the expected form."""
    path = case.run.layout.environment
    if not path.exists():
        notes.missing("environment.json is missing: what the run ran on is not known")
        return
    try:
        environment = read_json(path)
    except (RecordError, OSError) as error:
        notes.missing(f"environment.json cannot be read: {type(error).__name__}")
        return
    if not isinstance(environment, Mapping) or not isinstance(environment.get("packages"), Mapping):
        notes.missing("environment.json is no environment")
        return
    _check_source(case, environment.get("source_sha256"), notes)


def _check_source(case: Case, source: Any, notes: FindingBuilder) -> None:
    """environment.json and the first session name the same code. They may honestly differ only
    where a command died after it had made the run directory, and another version began the run.
    """
    ran = case.run.sessions[0].code if case.run.sessions else ""
    if ran and source != ran:
        notes.missing(
            f"environment.json has the code {shown(str(source)[:12])}, the first session of"
            f" supervisor.json ran {shown(ran[:12])}: which of them the run began with is not known"
        )


def other_environment(case: Case) -> tuple[str, ...]:
    """Differences between the environments of the run and its reference; evidence only, since equal
    results remain equal.
    """
    if case.reference is None:
        return ()
    ours, theirs = (
        _environment(case.run.layout.environment),
        _environment(case.reference.layout.environment),
    )
    kernels = sorted({name for environment in (ours, theirs) for name in _kernels(environment)})
    names = ("source_sha256", "packages.torch", "machine", "cpu.model", *kernels)
    differing = [
        (name, _at(ours, name), _at(theirs, name))
        for name in names
        if _at(ours, name) != _at(theirs, name)
    ]
    return tuple(
        f"the reference ran with {name} {_value(there)}, this run with {_value(here)}"
        for name, here, there in differing
    )


def _kernels(environment: Any) -> Iterator[str]:
    """The dotted keys of recorded kernel choices; names with a dot are skipped."""
    chosen = environment.get("math_kernels") if isinstance(environment, Mapping) else None
    if isinstance(chosen, Mapping):
        yield from (
            f"math_kernels.{name}" for name in chosen if isinstance(name, str) and "." not in name
        )


def _value(found: Any) -> str:
    return "not set" if found is None else shown(str(found), 20)


def _environment(path: Any) -> Any:
    try:
        return read_json(path)
    except (RecordError, OSError):
        return {}


def other_code(case: Case) -> tuple[str, ...]:
    """One line if the run's attempts ran different code; empty if no session recorded its code, as
    in older records.

    It changes no status: a result equal to the reference is equal whatever code computed it, and a
    difference is found anyway.
    """
    ran = [(a.attempt, session.code) for a in case.attempts if (session := case.run.session_of(a))]
    spans = [
        (code, [number for number, _ in group])
        for code, group in groupby(ran, key=lambda item: item[1])
    ]
    if len(spans) < 2:
        return ()
    named = [
        f"attempt {numbers[0]}" if len(numbers) == 1 else f"attempts {numbers[0]} to {numbers[-1]}"
        for _, numbers in spans
    ]
    texts = [
        f"{which} ran {f'code {shown(code[:12])}' if code else 'code that is not on record'}"
        for which, (code, _) in zip(named, spans, strict=True)
    ]
    return ("the run went on under other code: " + ", ".join(texts),)
