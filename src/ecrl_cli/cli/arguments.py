"""Parses the arguments of `ecrl train` and `ecrl study`: flags, and overrides read with Hydra's own
parser and checked.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, ValueType
from hydra.errors import HydraException

from ecrl_cli.cli.console import Parser
from ecrl_cli.cli.hydra_habits import refuse_flags, way_out
from ecrl_cli.cli.launcher_settings import PREFIX, JobLauncher, is_engine, split
from ecrl_cli.config.codec import flat, hints_of
from ecrl_cli.config.conf_paths import conf_dir, groups, installed_dirs, user_folders
from ecrl_cli.config.keys import RESERVED, is_known, reserved, unknown_key
from ecrl_cli.config.registry import did_you_mean
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import ConfigError, shown

# Config groups that train.yaml does not list: they are added with `+`.
_JOINING = ("suite", "matrix")


@dataclass(frozen=True)
class Arguments:
    """Parsed arguments. `overrides`: without hydra.searchpath; `search`: the folders of
    --config-dir, hydra.searchpath and installed packages, in the order in which options are looked
    for, after ECRL's own; `show`: print the configuration and stop.

    `mix`: accept runs that another code version or machine began. `yes`: do not ask before a long
    run.
    `launcher`: who runs the jobs.
    """

    overrides: tuple[Override, ...]
    search: tuple[str, ...]
    multirun: bool
    show: bool
    json: bool
    mix: bool = False
    yes: bool = False
    launcher: JobLauncher = field(default_factory=JobLauncher)

    @property
    def groups(self) -> dict[str, list[str]]:
        """Each configuration group with its options, ECRL's and those of `search`. ConfigError for
        a folder that cannot be read.
        """
        return groups([conf_dir(), *user_folders(self.search)])


def parse(argv: Sequence[str], verb: str = "train") -> Arguments:
    """The arguments of `ecrl train` or `ecrl study`; ConfigError if they cannot be parsed. Keys and
    options are checked by `check_overrides`.
    """
    refuse_flags(argv)
    parser = Parser(prog=f"ecrl {verb}", add_help=False, allow_abbrev=False)
    parser.add_argument("--multirun", "-m", action="store_true")
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("--cfg", "-c", choices=["job"])
    parser.add_argument("--json", action="store_true")
    if verb == "train":
        parser.add_argument("--mix", action="store_true")
        parser.add_argument("--yes", "-y", action="store_true")
    parser.add_argument("overrides", nargs="*")
    flags = parser.parse_intermixed_args(list(argv))
    parsed = read_overrides(_opened(text) for text in flags.overrides)
    search = [
        value
        for override in parsed
        if override.key_or_group == "hydra.searchpath"
        for value in _texts(override)
    ]
    folder = (
        [f"file://{Path(flags.config_dir).expanduser().absolute()}"] if flags.config_dir else []
    )
    rest = tuple(override for override in parsed if override.key_or_group != "hydra.searchpath")
    _refuse_repeats(rest)
    installed = [f"file://{folder}" for folder in installed_dirs()]
    runs, launcher = split(rest)
    if launcher.overrides and verb != "train":
        raise ConfigError(
            launcher.overrides[0].key_or_group, "serves `ecrl train` only", "leave it out"
        )
    mix, yes = getattr(flags, "mix", False), getattr(flags, "yes", False)
    return Arguments(
        runs,
        (*folder, *search, *installed),
        flags.multirun,
        bool(flags.cfg),
        flags.json,
        mix,
        yes,
        launcher,
    )


def _opened(text: str) -> str:
    """Adapts `text` to Hydra's grammar: open mappings (elastic.schedule, the scheduler's extra
    options) need `++` for new keys; `nan`, which Hydra reads as a number, is the name of a failure
    kind; and the key of a trial, which may have commas and parentheses, is quoted.
    """
    if text.startswith("trial=") and not re.fullmatch(r"""trial=(|(["']).*\2)""", text):
        return 'trial="' + re.sub(r'(\\*)"', r'\1\1\\"', text.removeprefix("trial=")) + '"'
    if text.startswith("failure="):
        return re.sub(r"(?<=[=,])nan(?=,|$)", "'nan'", text)
    return (
        f"++{text}"
        if text.startswith(("elastic.schedule", f"{PREFIX}additional_parameters"))
        else text
    )


def read_overrides(texts: Iterable[str]) -> list[Override]:
    """Parses each text as Hydra does."""
    return [_read(text) for text in texts]


def _read(text: str) -> Override:
    key, equals, value = text.partition("=")
    if not equals and not text.startswith("~"):
        raise ConfigError(
            shown(text),
            "is neither a verb nor key=value",
            f"write {text}=VALUE, or see `ecrl --help`",
        )
    if equals and not value:
        raise ConfigError(key.lstrip("+"), "has no value", f"give one: {key}=VALUE")
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException as error:
        raise ConfigError(
            shown(key),
            f"cannot be read: {shown(text)}",
            f"quote what is not plain: '{key}=\"...\"'",
        ) from error
    _refuse_unmeant(override)
    return override


def _refuse_unmeant(override: Override) -> None:
    key = override.key_or_group
    if any(part in RESERVED for part in key.split(".")):
        raise reserved(key)
    if override.is_delete():
        raise ConfigError(
            key, "keys cannot be taken away (~)", f"give it another value: {key}=VALUE"
        )
    if override.package is not None:
        raise ConfigError(
            key, f"packages (@{override.package}) are not accepted", f"write {key}=VALUE"
        )
    if override.is_hydra_override() and key != "hydra.searchpath" and not is_engine(key):
        raise ConfigError(key, "is set by ECRL", way_out(key))
    if override.value_type == ValueType.ELEMENT and override.value() == "???":
        raise ConfigError(key, "has no value", f"give one: {key}=VALUE")
    if override.is_sweep_override() and not override.is_discrete_sweep():
        raise ConfigError(key, "an interval cannot be enumerated", f"list the values: {key}=A,B")


def _texts(override: Override) -> list[str]:
    value = override.value()
    if not isinstance(value, list):
        raise ConfigError(
            "hydra.searchpath",
            f"must be a list, got {shown(value)}",
            "write hydra.searchpath=[DIR]",
        )
    return [str(item) for item in value]


def _refuse_repeats(overrides: Iterable[Override]) -> None:
    seen: set[str] = set()
    for override in overrides:
        if override.key_or_group in seen:
            raise ConfigError(
                override.key_or_group,
                "given twice",
                "keep one, or sweep over both with -m and a comma",
            )
        seen.add(override.key_or_group)


def check_overrides(
    overrides: Iterable[Override], groups: dict[str, list[str]], defaults: Iterable[str]
) -> None:
    """ConfigError for the first key or option that does not exist. `defaults`: the groups that
    train.yaml lists.
    """
    listed = frozenset(defaults)
    for override in overrides:
        key = override.key_or_group
        is_choice = not any(isinstance(value, dict) for value in values(override))
        if key in groups and is_choice:
            _check_group(override, groups[key], key in listed)
        elif key in _JOINING or not is_known(key):
            raise unknown_key(key, groups)


def files_named(overrides: Iterable[Override], groups: dict[str, list[str]]) -> Iterator[str]:
    """The files that `overrides` choose, as "group/option"."""
    for override in overrides:
        group = override.key_or_group
        globbed = override.value_type == ValueType.GLOB_CHOICE_SWEEP
        for option in groups.get(group, ()) if globbed else values(override):
            if group in groups:
                yield f"{group}/{option}"


def _check_group(override: Override, options: list[str], listed: bool) -> None:
    key = override.key_or_group
    if listed == override.is_add():
        text = override.input_line or key
        raise ConfigError(
            key,
            "is always there" if listed else "is not there unless it joins",
            f"write {text.lstrip('+') if listed else '+' + text}",
        )
    for value in values(override):
        if str(value) not in options:
            raise ConfigError(
                key,
                f"must be one of {', '.join(options)}, got {shown(value)}",
                _way_out(key, str(value), options),
            )


def _name_key(group: str) -> tuple[str, str]:
    """For a config group whose options packages may add: the key that names the option, and the
    entry-point group; else two empty texts.
    """
    section = hints_of(RunConfig).get(group)
    fields = dataclasses.fields(section) if dataclasses.is_dataclass(section) else ()
    return next(
        (
            (f"{group}.{each.name}", each.metadata["group"])
            for each in fields
            if each.metadata.get("group")
        ),
        ("", ""),
    )


def _way_out(group: str, name: str, options: list[str]) -> str:
    """Hint for a `group` that has no YAML file `name`: what to type or to write."""
    key, added_by = _name_key(group)
    if added_by and entry_points(group=added_by, name=name):
        return f"it is installed, but brings no YAML file: write {key}={name}"
    by_package = (
        f"; what it names joins by --plugin FILE.py or by an entry point in {added_by}: see"
        " docs/extend.md"
        if added_by
        else ""
    )
    return (
        did_you_mean(name, options)
        or f"an option of your own is a file {group}/NAME.yaml in --config-dir DIR{by_package}"
    )


def values(override: Override) -> list[Any]:
    """The value, or each value of a sweep."""
    if not override.is_sweep_override():
        return [override.value()]
    if override.value_type == ValueType.GLOB_CHOICE_SWEEP:
        return []
    return [Override._convert_value(value) for value in override.sweep_iterator()]


def typed(overrides: Iterable[Override]) -> frozenset[str]:
    """The dotted keys and groups that `overrides` set; a mapping counts key by key."""
    return frozenset(
        key
        for override in overrides
        for value in values(override)
        for key, _ in flat(value, override.key_or_group)
    )
