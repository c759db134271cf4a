"""Checks names, numbers and environment of a run against the second place that records them, and
reports where code or environment differ.

A label changed consistently everywhere, with ids recomputed, contradicts nothing: only the seal
shows that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from ecrl_cli.checkpoint.format.train_document import tensor_digests
from ecrl_cli.errors import RecordError, plural, shown
from ecrl_cli.records.journal import read_json
from ecrl_cli.verify.composed import check_composed, scalar_at
from ecrl_cli.verify.verdict import FindingBuilder
from ecrl_cli.verify.verification_input import Case

# of environment.json, held against the reference's
_COMPARED = (
    *("source_sha256", "git_revision", "packages.torch", "machine", "kernel", "cpu.model"),
    *("cpu.logical", "cpu.physical", "memory_bytes", "gpus", "file_system.type"),
)


def check_labels(case: Case, notes: FindingBuilder) -> None:
    """Check config.json against Hydra's composed configuration, dataset.json and
    environment.json.
    """
    check_composed(case, notes)
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
    gpus = environment.get("gpus", [])
    if not isinstance(gpus, list) or not all(isinstance(gpu, Mapping) for gpu in gpus):
        notes.missing("environment.json has GPUs that are none: each is to have a name of its own")
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
        _counted(_environment(case.run.layout.environment)),
        _counted(_environment(case.reference.layout.environment)),
    )
    kernels = sorted({name for environment in (ours, theirs) for name in _kernels(environment)})
    names = (*_COMPARED, *kernels)
    differing = [
        (name, scalar_at(ours, name), scalar_at(theirs, name))
        for name in names
        if scalar_at(ours, name) != scalar_at(theirs, name)
    ]
    return tuple(
        f"the reference ran with {name} {_value(there)}, this run with {_value(here)}"
        for name, here, there in differing
    )


def _counted(environment: Any) -> Any:
    """The environment with the number of its GPUs in place of them."""
    gpus = environment.get("gpus") if isinstance(environment, Mapping) else None
    return {**environment, "gpus": len(gpus)} if isinstance(gpus, list) else environment


def unused_gpus(case: Case) -> tuple[str, ...]:
    """One line if environment.json names GPUs, and checkpoints made under `device=auto` have a
    CPU's generators. Evidence only: torch may not see what nvidia-smi shows.
    """
    gpus = scalar_at(_counted(_environment(case.run.layout.environment)), "gpus")
    manifests = [c.report.manifest for c in case.disk if c.report.manifest]
    drawn = {name for each in manifests for name in tensor_digests(each) if name[:4] == "rng."}
    on_cpu = drawn and not any(name.endswith(".cuda") for name in drawn)
    if not (gpus and on_cpu and case.run.stored.config.device == "auto"):
        return ()
    return (f"environment.json names {gpus} GPUs, and the checkpoints hold the state of a CPU",)


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
