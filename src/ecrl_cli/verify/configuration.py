"""Checks that config.json is a configuration that ECRL runs. Keys that are in no id (run_id.md)
could otherwise hold anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass, replace
from typing import Any

from ecrl_cli.config.checks import check
from ecrl_cli.config.convert import convert
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import ConfigError
from ecrl_cli.verify.verdict import FindingBuilder
from ecrl_cli.verify.verification_input import Case


def check_configuration(case: Case, notes: FindingBuilder) -> None:
    """Names of packages that are not installed here are no contradiction: `missing`."""
    if error := out_of_range(case.run.stored.config):
        by_package = error.key in set(_extensible(case.run.stored.config)) or error.fact.startswith(
            "unknown "
        )
        (notes.missing if by_package else notes.broken)(
            f"config.json is none that ECRL runs: {error.key} {error.fact}"
        )


def out_of_range(config: RunConfig) -> ConfigError | None:
    """The first value that no configuration of ECRL has, whatever the others; None if there is
    none.
    """
    try:
        convert(RunConfig, asdict(config))
    except ConfigError as error:
        return error
    return None


def refusal(config: RunConfig) -> ConfigError | None:
    """Why ECRL would refuse to run `config`; None if it would not. What the machine must have for
    it is left aside.
    """
    if error := out_of_range(config):
        return error
    elsewhere = replace(
        config,
        storage=replace(config.storage, folder=""),
        dataset=replace(config.dataset, root=config.dataset.root or "."),
    )
    try:
        check(elsewhere)
    except ConfigError as error:
        return error
    return None


def _extensible(config: Any, prefix: str = "") -> Iterator[str]:
    """The dotted keys whose names installed packages add to."""
    for each in fields(config):
        value = getattr(config, each.name)
        if is_dataclass(value):
            yield from _extensible(value, f"{prefix}{each.name}.")
        elif each.metadata.get("group"):
            yield f"{prefix}{each.name}"
