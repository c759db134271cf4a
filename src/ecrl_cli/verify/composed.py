"""Checks config.json against what Hydra composed for the run (.hydra/config.yaml), and that file
against the digest of it that each session recorded as it began.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import yaml

from ecrl_cli.config.identity import NOT_IDENTITY
from ecrl_cli.config.plan_kinds import plan_kind
from ecrl_cli.config.schema import FailureConfig, RunConfig
from ecrl_cli.errors import ConfigError, RecordError, shown
from ecrl_cli.records.digests import composed_sha256
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import is_folder
from ecrl_cli.records.safe_read import read_whole
from ecrl_cli.verify.verdict import FindingBuilder
from ecrl_cli.verify.verification_input import Case

_MAX_COMPOSED = 2**18
_UNREADABLE = (RecordError, yaml.YAMLError, ValueError, OSError)
_INTERPOLATION = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")
# Not as composed: in no id, so that a run may be resumed with others; or changed by a scale, a
# schedule, a variant or a continuation.
_NOT_AS_TYPED = (
    *NOT_IDENTITY,
    *("target_steps", "continued_at", "global_batch", "world_size", "model.width", "failure"),
    *("checkpoint.every", "elastic.schedule", "supervision.launcher"),
)
# labels only: part of no id
_NAMES = ("suite_name", "scale.name", "scale.steps", "scale.batch", "scale.width")
# as configured if the scale's factor is 1
_SCALED = {"target_steps": "steps", "global_batch": "batch", "model.width": "width"}
NOT_COMPOSED = "what Hydra composed is not on record: config.json alone says how the run was made"
# how patient the supervisor was: part of no id, so that later sessions may have others
_PATIENCE = tuple(
    f"supervision.{name}"
    for name in ("hang_timeout_s", "hang_factor", "start_timeout_s", "grace_s", "writer_grace_s")
)
_PLAIN = re.compile(r"\+{0,2}([A-Za-z_][\w.]*)=([\w.+-]+)")  # an override that needs no grammar
_TIMES = ("steps", "entries", "mtbf_steps")  # of a failure plan: shortened with the run


def check_composed(case: Case, notes: FindingBuilder) -> None:
    """Compare config.json with .hydra/config.yaml. A run repeated under other names is the same
    run: names may differ, but which is right is then unknown.
    """
    layout = case.run.layout
    recorded = case.run.sessions[-1].composed if case.run.sessions else ""
    if not is_folder(layout.hydra) or not layout.composed.exists():
        if recorded:
            notes.missing(".hydra/config.yaml is gone, from which the last session began")
        return
    try:
        composed = _loaded(layout.composed)
    except _UNREADABLE as error:
        notes.missing(f".hydra/{layout.composed.name} cannot be read: {type(error).__name__}")
        return
    if recorded and composed_sha256(layout) != recorded:
        notes.missing(
            ".hydra/config.yaml is not the one from which the last session began, by the digest in"
            " supervisor.json"
        )
    stored = read_json(layout.config)["config"]
    _check_names(case, stored, composed, notes)
    _check_overrides(case, composed, notes)
    for key in (*_as_typed(stored), *_unscaled(case.run.stored.config)):
        _compare(key, scalar_at(stored, key), _resolved(composed, key), notes)
    _check_launcher(case, composed, notes)
    _check_failures(case, stored, composed, notes)


def not_composed(case: Case) -> tuple[str, ...]:
    """One line where nothing but config.json says how the run was configured."""
    if case.run.layout.composed.exists() or any(each.composed for each in case.run.sessions):
        return ()
    return (NOT_COMPOSED,)


def _check_names(case: Case, stored: Any, composed: Any, notes: FindingBuilder) -> None:
    named = _named_by_its_parts(case)
    alone = len(case.run.sessions) == 1  # then config.json and .hydra are of the same command
    for key in (*_NAMES, *(_PATIENCE if alone else ())):
        theirs, where = (
            (named, f"by .hydra/{case.run.layout.overrides.name}")
            if named and key == "suite_name"
            else (_resolved(composed, key), "in .hydra/config.yaml")
        )
        ours = scalar_at(stored, key)
        if None not in (ours, theirs) and not _alike(ours, theirs):
            text = f"{_differs(key, ours, theirs)} {where}"
            notes.missing(f"{text}: which of them the run was made under is not known")


def _check_overrides(case: Case, composed: Any, notes: FindingBuilder) -> None:
    """Each plain value that was typed is the composed one: Hydra writes both files at once."""
    plain = (match for word in _words(case) if (match := _PLAIN.fullmatch(word)))
    for key, typed in {match[1]: match[2] for match in plain}.items():  # the last one counts
        theirs = scalar_at(composed, key)
        if theirs is not None and str(theirs) != typed and not _alike(theirs, typed):
            where = f".hydra/{case.run.layout.overrides.name} says {key}={typed}"
            notes.missing(f"{where}, .hydra/config.yaml {shown(str(theirs))}: which is not known")


def _compare(key: str, ours: Any, theirs: Any, notes: FindingBuilder) -> None:
    if None not in (ours, theirs) and not _alike(ours, theirs):
        notes.broken(f"{_differs(key, ours, theirs)} in .hydra/config.yaml")


def _differs(key: str, ours: Any, theirs: Any) -> str:
    return f"{key} is {shown(str(ours))} in config.json, {shown(str(theirs))}"


def _as_typed(stored: Any, prefix: str = "") -> Iterator[str]:
    """The dotted keys of `stored` whose values are those that Hydra composed."""
    for name, value in stored.items():
        key = f"{prefix}{name}"
        if key in _NOT_AS_TYPED:
            continue
        if isinstance(value, Mapping):
            yield from _as_typed(value, f"{key}.")
        else:
            yield key


def _unscaled(config: RunConfig) -> Iterator[str]:
    for key, factor in _SCALED.items():
        if getattr(config.scale, factor) == 1.0 and not config.elastic.schedule:
            yield key


def _check_launcher(case: Case, composed: Any, notes: FindingBuilder) -> None:
    """The launcher is the composed one, or the scale's where none was typed."""
    typed = _typed(case)
    if not typed:
        return
    scaled = scalar_at(composed, "scale.launcher")
    chosen = typed & {"supervision", "supervision.launcher"} or not scaled
    due = _resolved(composed, "supervision.launcher") if chosen else scaled
    _compare("supervision.launcher", case.run.stored.config.supervision.launcher, due, notes)


def _check_failures(case: Case, stored: Any, composed: Any, notes: FindingBuilder) -> None:
    """The plan of failures is the composed one, but for keys that its kind does not use (they are
    left at their defaults) and for what a schedule, a variant or a scale changes.
    """
    config, typed = case.run.stored.config, _typed(case)
    planned = _mapping(composed, "failure")
    none_wanted = not config.variant.failures or planned.get("kind") in (None, "none")
    if (
        config.failure == FailureConfig() and (none_wanted or "schedule" in typed)
    ) or config.schedule.at:
        return
    try:
        unused = plan_kind(config.failure.kind).unused_keys(config.failure)
    except ConfigError:
        return  # a kind of a package that is not installed here
    for each in fields(FailureConfig):
        key = f"failure.{each.name}"
        ours, theirs = _plain(getattr(config.failure, each.name)), planned.get(each.name)
        scaled = (each.name in _TIMES and config.scale.steps != 1.0) or (
            each.name == "rank" and isinstance(theirs, int) and theirs >= config.world_size
        )
        resolvable = theirs is not None and "${" not in str(theirs)
        left_out = each.name in unused and ours == _plain(getattr(FailureConfig(), each.name))
        if resolvable and not (scaled and key not in typed) and not left_out:
            _compare(key, ours, _plain(theirs), notes)


def _mapping(document: Any, key: str) -> Mapping[str, Any]:
    found = document.get(key) if isinstance(document, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _plain(value: Any) -> Any:
    """A list as one text, so that it compares like a scalar."""
    return str(list(map(str, value))) if isinstance(value, list | tuple) else value


def _typed(case: Case) -> set[str]:
    """The keys and groups of .hydra/overrides.yaml; empty if they are not on record."""
    return {word.partition("=")[0].lstrip("+") for word in _words(case)}


def _words(case: Case) -> list[str]:
    """The overrides as typed; empty if they are not on record."""
    try:
        overrides = _loaded(case.run.layout.overrides)
    except _UNREADABLE:
        return []
    words = overrides if isinstance(overrides, list) else []
    return [word for word in words if isinstance(word, str)]


def _named_by_its_parts(case: Case) -> str | None:
    """The suite's name where a typed schedule replaced the suite's own (`+suite=cifar10-r18-late
    schedule=between`): ECRL then names the suite anew, and Hydra's composed configuration still has
    the old name. None where that was not typed, or what was typed is not on record.
    """
    typed = _typed(case) & {"schedule", "suite_name"}
    if typed != {"schedule"}:
        return None
    from ecrl_cli.config.build import name_the_suite  # imports omegaconf, which no other run needs

    return name_the_suite(case.run.stored.config, frozenset(typed)).suite_name


def _loaded(path: Any) -> Any:
    """The YAML document in `path`; one of `_UNREADABLE` if there is none."""
    return yaml.load(
        read_whole(path, _MAX_COMPOSED), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    )


def scalar_at(document: Any, key: str) -> Any:
    """The value at a dotted key; None if there is none, or it is not a scalar."""
    for name in key.split("."):
        document = document.get(name) if isinstance(document, Mapping) else None
    return document if isinstance(document, (str, int, float, bool)) else None


def _resolved(composed: Any, key: str) -> Any:
    """Like `scalar_at`, with each `${key}` replaced by the value there, since Hydra stores
    interpolations unresolved: a text that is nothing else takes the value's type. None for what
    only a resolver can tell (`${oc.env:SEED}`).
    """
    value = scalar_at(composed, key)
    if not isinstance(value, str):
        return value
    if whole := _INTERPOLATION.fullmatch(value):
        return scalar_at(composed, whole[1])
    text = _INTERPOLATION.sub(lambda found: str(scalar_at(composed, found[1])), value)
    return None if "${" in text else text


def _alike(ours: Any, theirs: Any) -> bool:
    """Equality in which text that reads as a number or switch equals it: YAML reads 1e-6 as text,
    and `true` as no text.
    """
    if isinstance(ours, bool) and isinstance(theirs, str):
        return str(ours).lower() == str(theirs).lower()
    if isinstance(ours, (int, float)) and isinstance(theirs, str):
        try:
            return float(theirs) == float(ours)
        except ValueError:
            return False
    if isinstance(ours, str) and not isinstance(theirs, str):
        return ours.lower() == str(theirs).lower()
    return bool(ours == theirs)
