"""Composes the configuration of each run with Hydra, once and before anything is written; the
result is what is trained and recorded.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import RunMode

from ecrl_cli.cli.arguments import Arguments, check_overrides, files_named, read_overrides, typed
from ecrl_cli.cli.hydra_habits import refuse_commas
from ecrl_cli.config.build import build
from ecrl_cli.config.codec import encode
from ecrl_cli.config.conf_paths import check_files, conf_dir, user_folders
from ecrl_cli.config.keys import quote
from ecrl_cli.config.omegaconf_bridge import raw
from ecrl_cli.config.scale import SCALED_IN_A_MATRIX
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import ConfigError, plural

PRIMARY = "train"
# Hydra before 1.4 takes its behaviour from a version; later ones deprecate naming one.
VERSION_BASE: dict[str, Any] = {"version_base": None} if hydra.__version__.startswith("1.3") else {}
_MAX_CELLS = 10_000
_WORTH_SAYING = 24  # runs: from here on composing takes seconds
# Hydra's own settings through which a file could run code, write elsewhere or bypass the
# supervisor.
_GUARDED = (
    "launcher",
    "callbacks",
    "run",
    "sweep",
    "job_logging",
    "hydra_logging",
    "output_subdir",
    "verbose",
    "mode",
)
_GUARDED_JOB = ("chdir", "env_set", "env_copy")

ConfigStore.instance().store(name="schema", node=encode(RunConfig()), provider="ecrl")


@dataclass(frozen=True)
class ComposedRun:
    """One run of the grid: its overrides, its checked configuration, and the plain values that
    Hydra composed for it (interpolations as written).
    """

    overrides: tuple[str, ...]
    config: RunConfig
    composed: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Grid:
    """All runs of a command. `swept`: whether a sweep was asked for. `matrix`: the matrix file's
    name, or empty. `master`: the configuration that Hydra composed for the whole command, sweeps
    unexpanded.
    """

    cells: tuple[ComposedRun, ...]
    swept: bool
    matrix: str
    master: Any


def compose_grid(arguments: Arguments, say: Callable[[str], None] = lambda line: None) -> Grid:
    """Composes, converts and checks every run that `arguments` ask for. Raises ConfigError; writes
    nothing.
    """
    with initialized(PRIMARY):
        composer = _Composer(arguments)
        composer.check(arguments.overrides)
        texts = [override.input_line or "" for override in arguments.overrides]
        master = composer.compose(texts, RunMode.MULTIRUN)
        params = _params(master)
        refuse_commas(arguments.overrides, "ecrl", arguments.multirun or bool(params))
        composer.check(read_overrides([f"{key}={value}" for key, value in params.items()]))
        own = frozenset(o.key_or_group for o in arguments.overrides)
        # matrix first, so that what was typed overrides it
        jobs = expand([*(f"{key}={value}" for key, value in params.items()), *texts])
        if len(jobs) >= _WORTH_SAYING:
            say(f"composing {plural(len(jobs), 'run')}")
        notes: dict[str, None] = {}  # deduplicated: the arms of a sweep share most notes
        swept = arguments.multirun or bool(params)
        cells = []
        for job in jobs:
            composed = composer.compose(job) if swept else master
            cells.append(composer.cell(composed, job, params, own, notes))
    for note in notes:
        say(note)
    matrix = next((str(o.value()) for o in arguments.overrides if o.key_or_group == "matrix"), "")
    return Grid(tuple(cells), swept, matrix, master)


class _Composer:
    """Composes with the user's folders and the chosen launcher; ConfigError where a file changes
    Hydra's own settings.
    """

    def __init__(self, arguments: Arguments) -> None:
        launcher = arguments.launcher.for_hydra()
        bare = _bare(tuple(launcher))
        self._settings = _settings(bare)
        self._common = [*search_override(arguments.search), *launcher]
        self._groups = arguments.groups
        self._folders = user_folders(arguments.search)
        # in train.yaml
        self._listed = frozenset(
            str(name) for name in bare["runtime"]["choices"] if not str(name).startswith("hydra/")
        )

    def check(self, overrides: Sequence[Override]) -> None:
        """ConfigError for the first key or option that does not exist, or whose file cannot be
        used.
        """
        check_overrides(overrides, self._groups, self._listed)
        check_files(self._folders, files_named(overrides, self._groups))

    def cell(
        self,
        composed: Any,
        overrides: list[str],
        params: dict[str, str],
        own: frozenset[str],
        notes: dict[str, None],
    ) -> ComposedRun:
        """One run; ConfigError where a file brings a sweep beyond `params`, which would not be
        expanded. `own`: the keys that the user typed, without the matrix's. `notes` collects
        messages about the run.
        """
        lost = _params(composed)
        if lost != params:
            fact = (
                f"carries a sweep of its own ({', '.join(lost)}) and is itself swept over: its grid"
                " would be lost"
            )
            group = next(
                (text.partition("=")[0].lstrip("+") for text in overrides if text.startswith("+")),
                "hydra.sweeper.params",
            )
            raise ConfigError(group, fact, "start it alone, without sweeping over it")
        own_keys = typed(read_overrides(overrides)) - (SCALED_IN_A_MATRIX - own)
        config = build(composed, own_keys, lambda line: notes.update({line: None}))
        return ComposedRun(tuple(overrides), config, raw(composed))

    def compose(self, overrides: list[str], mode: RunMode = RunMode.RUN) -> Any:
        composed = compose(PRIMARY, [*overrides, *self._common], mode)
        for key, value in _settings(raw(composed.hydra)).items():
            if value != self._settings[key]:
                raise ConfigError(f"hydra.{key}", "is set by ECRL", "take it out of your file")
        return composed


@cache
def _bare(launcher: tuple[str, ...]) -> dict[str, Any]:
    """Hydra's own node with only `launcher` overridden: composed from ECRL's files alone, which do
    not change while it runs.
    """
    node: dict[str, Any] = raw(compose(PRIMARY, list(launcher)).hydra)
    return node


def _settings(node: dict[str, Any]) -> dict[str, Any]:
    """The settings of Hydra's node that a file may not change."""
    job = {f"job.{key}": node["job"][key] for key in _GUARDED_JOB}
    return {
        **{key: node[key] for key in _GUARDED},
        **job,
        "sweeper": {**node["sweeper"], "params": None},
    }


def _params(composed: Any) -> dict[str, str]:
    return {
        str(key): str(value) for key, value in (raw(composed.hydra.sweeper.params) or {}).items()
    }


def compose(primary: str, overrides: list[str], mode: RunMode = RunMode.RUN) -> Any:
    """Composes `primary`.yaml with `overrides`; ConfigError, in one line, on any error of Hydra's.
    MULTIRUN leaves sweeps unexpanded.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return (
                GlobalHydra.instance()
                .config_loader()
                .load_configuration(primary, overrides, mode, from_shell=False)
            )
    except Exception as error:
        raise explained(error) from error


def search_override(search: Sequence[str]) -> list[str]:
    """The override that adds the user's folders to Hydra's search path."""
    quoted = ",".join(quote(path) for path in search)
    return [f"hydra.searchpath=[{quoted}]"] if search else []


@contextmanager
def initialized(primary: str) -> Iterator[None]:
    """Initializes Hydra to compose `primary`.yaml."""
    if not (conf_dir() / f"{primary}.yaml").is_file():
        raise ConfigError("conf", f"no configuration files at {conf_dir()}", "install ECRL again")
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(config_dir=str(conf_dir()), job_name=primary, **VERSION_BASE):
        yield


def expand(texts: list[str]) -> list[list[str]]:
    """Every combination of comma-separated values, in the order of Hydra's basic sweeper: the last
    key varies fastest, and a repeated key replaces the earlier one, in its place.
    """
    loader = GlobalHydra.instance().config_loader()
    values: dict[str, list[str]] = {}
    for override in OverridesParser.create(config_loader=loader).parse_overrides(texts):
        each = (
            override.sweep_string_iterator()
            if override.is_sweep_override()
            else [override.get_value_element_as_str()]
        )
        values[override.get_key_element()] = [
            f"{override.get_key_element()}={value}" for value in each
        ]
    count = math.prod(map(len, values.values()))
    if not 0 < count <= _MAX_CELLS:
        raise ConfigError(
            "sweep",
            f"makes {plural(count, 'run')}, 1 to {_MAX_CELLS} can be started",
            "look at the values with commas",
        )
    return [list(job) for job in itertools.product(*values.values())]


def explained(error: Exception) -> ConfigError:
    """An error of Hydra, OmegaConf or YAML as one line, with file, line and column where known."""
    mark = getattr(error, "problem_mark", None)  # YAML errors carry their position
    if mark is not None:
        fact = f"is not YAML: {getattr(error, 'problem', error)}"
        return ConfigError(
            f"{mark.name}:{mark.line + 1}:{mark.column + 1}",
            fact,
            "indent with spaces, close every bracket",
        )
    lines = [
        line.strip()
        for text in (str(error), str(error.__cause__ or ""))
        for line in text.splitlines()
        if line.strip()
    ]
    missing = getattr(error, "missing_cfg_file", None)
    if missing:
        return ConfigError(
            str(missing),
            "no such configuration file",
            "`ecrl train --help` lists the groups and their options",
        )
    return ConfigError(
        "configuration",
        "; ".join(lines[:3]) or type(error).__name__,
        "`ecrl train --cfg job` shows what is composed",
    )
