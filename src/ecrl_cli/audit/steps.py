"""One optimizer step of a recording, and how it is read from its line. The input is untrusted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ecrl.digests import GENERATORS

MAX_STEP = 10**9
MAX_SECONDS = 1e9
MAX_TEXT = 4096  # characters of a path, a digest, the name of a call
MAX_OBJECTS = 4096  # optimizers of one process
DIGESTS = ("params", "buffers", "optimizer", "settings", *GENERATORS)
# the name under which a record without objects keeps the state of all optimizers together
WHOLE = ""


@dataclass(frozen=True)
class Batch:
    """One batch. `samples`: identifiers of its samples: ids, else a digest of each row, else the
    digest of the whole; `by_id`: whether they are ids."""

    samples: tuple[str, ...]
    by_id: bool
    digest: str
    loader: int = 0


@dataclass(frozen=True)
class OptimizerState:
    """Digests of one optimizer: of its parameters, its state (moments, counters), its settings (lr,
    weight decay, ...). Empty where not recorded."""

    params: str = ""
    optimizer: str = ""
    settings: str = ""


Optimizers = Mapping[str, OptimizerState]  # by name


@dataclass(frozen=True)
class Step:
    """One optimizer step of one process.

    `number`: counted by that process from 1 in each attempt, or as declared by the job. `digests`,
    `optimizers`: the state behind the update. `digests_before`, `optimizers_before`: the state just
    before it. `who`: the optimizers that stepped. `entered`: digests of what entered the model.
    """

    number: int
    declared: bool
    batches: tuple[Batch, ...]
    losses: tuple[float | None, ...]
    digests: Mapping[str, str]
    lr: tuple[float, ...]
    scale: float | None
    seconds: float
    at: float
    optimizers: Optimizers = field(default_factory=dict)
    digests_before: Mapping[str, str] = field(default_factory=dict)
    optimizers_before: Optimizers = field(default_factory=dict)
    who: tuple[str, ...] = ()
    entered: tuple[str, ...] = ()

    @property
    def samples(self) -> tuple[str, ...]:
        return tuple(sample for batch in self.batches for sample in batch.samples)

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(batch.digest for batch in self.batches if batch.digest)

    @property
    def by_id(self) -> bool:
        return bool(self.batches) and all(batch.by_id for batch in self.batches)


def step_of(
    line: Mapping[str, Any],
    consumed: tuple[Batch, ...],
    earlier: Optimizers | None,
    start: Mapping[str, Any] | None,
) -> Step:
    """The step that `line` tells of. `earlier`: the optimizers' state as the record has told it so
    far (None: nothing yet). `start`: the start line, as read, if this is the first step.

    A line without `before` (written by hand, or by an older recorder) has the state of the step
    before as the one before it, and generators and settings of just one instant.
    """
    if line.get("ids") is not None or line.get("hash") is not None:
        consumed = (*consumed, batch_of(line))
    digests = {name: shortened(str(line[name])) for name in DIGESTS if line.get(name)}
    if told := watched_text(line):
        digests["watched"] = told
    before = line.get("before")
    optimizers = optimizers_of(line, digests)
    if isinstance(before, Mapping):
        digests_before = {
            name: shortened(str(before[name])) for name in GENERATORS if before.get(name)
        }
        optimizers_before = _changed(earlier or {}, before)
    else:
        instant = start if start is not None else digests
        digests_before = {name: str(instant[name]) for name in GENERATORS if instant.get(name)}
        settings = str(instant.get("settings", ""))
        known = earlier if start is None else start["optimizers"]
        optimizers_before = {
            name: replace(state, settings=settings) for name, state in (known or {}).items()
        }
        if not optimizers_before and settings:
            optimizers_before = {WHOLE: OptimizerState(settings=settings)}
    return Step(
        number=count_of(line["step"]),
        declared=bool(line.get("declared", False)),
        batches=consumed,
        losses=tuple(None if loss is None else float(loss) for loss in line.get("losses", [])),
        digests=digests,
        lr=rates_of(line),
        scale=None if line.get("scale") is None else float(line["scale"]),
        seconds=seconds_of(line.get("seconds", 0.0)),
        at=float(line.get("at", 0.0)),
        optimizers=_with_settings(optimizers, line),
        digests_before=digests_before,
        optimizers_before=optimizers_before,
        who=tuple(shortened(str(name)) for name in line.get("who") or ()),
        entered=tuple(shortened(str(text)) for text in line.get("entered") or ()),
    )


def optimizers_of(line: Mapping[str, Any], digests: Mapping[str, str]) -> Optimizers:
    """By name, as `objects` of a line tells; a line without has one state of all together."""
    told = line.get("objects")
    if told is None:
        parts = {name: digests.get(name, "") for name in ("params", "optimizer", "settings")}
        return {WHOLE: OptimizerState(**parts)} if parts["params"] or parts["optimizer"] else {}
    if not isinstance(told, Mapping) or len(told) > MAX_OBJECTS:
        raise ValueError(f"objects are no more than {MAX_OBJECTS} states by name")
    return {shortened(str(name)): _state(parts) for name, parts in told.items()}


def _state(parts: Any) -> OptimizerState:
    if not isinstance(parts, Mapping):
        raise ValueError("the state of an optimizer is an object")
    return OptimizerState(
        *(shortened(str(parts.get(name) or "")) for name in ("params", "optimizer", "settings"))
    )


def _changed(earlier: Optimizers, before: Mapping[str, Any]) -> Optimizers:
    """The earlier facts about the optimizers, updated with those that have changed since."""
    if "objects" not in before:
        return _with_settings({}, before)
    return _with_settings({**earlier, **optimizers_of(before, {})}, before)


def _with_settings(optimizers: Optimizers, line: Mapping[str, Any]) -> Optimizers:
    """`optimizers`, whose settings are told of in `settings_of`: also of those with no digest of a
    tensor.
    """
    told = line.get("settings_of")
    if not isinstance(told, Mapping):
        return optimizers
    if len(told) > MAX_OBJECTS:
        raise ValueError(f"settings_of has more than {MAX_OBJECTS} names")
    settings = {shortened(str(name)): shortened(str(value)) for name, value in told.items()}
    return {
        name: replace(optimizers.get(name, OptimizerState()), settings=value)
        for name, value in settings.items()
    }


def amended(before: Step, step: Step) -> Step:
    """`before` with what `step`, of the same backward pass, adds to it."""
    return replace(
        before,
        batches=before.batches + step.batches,
        losses=before.losses + step.losses,
        digests={**before.digests, **step.digests},
        optimizers={**before.optimizers, **step.optimizers},
        lr=step.lr,
        scale=step.scale,
        seconds=before.seconds + step.seconds,
        at=step.at,
        who=tuple(dict.fromkeys((*before.who, *step.who))),
        entered=before.entered + step.entered,
    )


def with_observed(step: Step, seen: list[Step]) -> Step:
    """`step`, declared by the job, merged with those that the recorder observed since the last
    declared one.

    A field that the job did not declare is taken from the observed steps: batches, losses and
    inputs of all, the state before of the first, the rest of the last.
    """
    if not seen:
        return step
    first, last = seen[0], seen[-1]
    return replace(
        step,
        batches=step.batches or tuple(batch for one in seen for batch in one.batches),
        losses=step.losses or tuple(loss for one in seen for loss in one.losses),
        digests={**last.digests, **step.digests},
        optimizers=last.optimizers or step.optimizers,
        digests_before=first.digests_before,
        optimizers_before=first.optimizers_before,
        lr=step.lr or last.lr,
        scale=last.scale if step.scale is None else step.scale,
        seconds=step.seconds or sum(one.seconds for one in seen),
        who=tuple(dict.fromkeys(name for one in seen for name in one.who)),
        entered=tuple(text for one in seen for text in one.entered),
    )


def batch_of(line: Mapping[str, Any]) -> Batch:
    ids, rows, digest = line.get("ids"), line.get("rows"), str(line.get("hash") or "")
    loader = count_of(line.get("loader") or 0)
    if ids is not None:
        return Batch(tuple(str(int(sample)) for sample in ids), True, digest, loader)
    return Batch(tuple(str(row) for row in rows) if rows else (digest,), False, digest, loader)


def watched_text(line: Mapping[str, Any]) -> str:
    """The watched objects' digests as one text by which two steps can be compared."""
    watched = line.get("watched") or {}
    return ", ".join(f"{name} {shortened(str(watched[name]))}" for name in sorted(watched))


def rates_of(line: Mapping[str, Any]) -> tuple[float, ...]:
    return tuple(float(rate) for rate in line.get("lr") or ())


def seconds_of(value: Any) -> float:
    seconds = float(value)
    if isinstance(value, bool) or not 0 <= seconds <= MAX_SECONDS:
        raise ValueError(f"{str(value)[:40]} is no time from 0 to {MAX_SECONDS:.0f} s")
    return seconds


def shortened(value: Any) -> Any:
    return value[:MAX_TEXT] if isinstance(value, str) else value


def count_of(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_STEP:
        raise ValueError(f"{value!r} is no count from 0 to {MAX_STEP}")
    return value


def same_number(one: float | None, other: float | None) -> bool:
    """Equal as floats; two NaN are equal."""
    if one is None or other is None:
        return one is other
    return one == other or (math.isnan(one) and math.isnan(other))
