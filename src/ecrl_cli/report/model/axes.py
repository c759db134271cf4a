"""The axes of a sweep: the settings in which runs differ, found in their configurations, with short
names for their levels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ecrl_cli.config.codec import encode
from ecrl_cli.config.schema import WRITE_MODES, RunConfig
from ecrl_cli.config.strategies import FOREIGN, STRATEGIES
from ecrl_cli.report.model.run_record import Run
from ecrl_cli.report.model.settings import SUITE, flat_config

BETWEEN = " \N{MIDDLE DOT} "  # the levels in an arm's label
VARIANT = "variant.name"
UNNAMED = "custom"  # the variant of a run that names none
ORDER = (
    "clean",
    "ref",
    "ref2",
    "blk",
    "ovl",
    "mem",
    "spares",
    "rollback",
    "forward",
    "skip",
    "redistribute",
    *(kind.name for kind in FOREIGN),
)
# Of keys that always differ together the first of these is the axis; any other key comes after
# them, in the order of the configuration.
_FIRST = (
    VARIANT,
    "dataset.name",
    "model.name",
    "task.name",
    "optimizer.name",
    "checkpoint.strategy",
    "write_mode.name",
    "storage.name",
    *("failure.kind", "schedule.name", "recovery.name", "supervision.launcher"),
)
_NAMES = {
    "checkpoint.strategy": "checkpoint",
    "failure.kind": "failure",
    "supervision.launcher": "launcher",
    SUITE: SUITE,
}
# By key the order of the levels, base first; elsewhere the default comes first, then numbers and
# names in ascending order.
_LEVELS: dict[str, Sequence[str]] = {
    VARIANT: ORDER,
    "checkpoint.strategy": STRATEGIES.builtin,
    "write_mode.name": WRITE_MODES[::-1],
}


@dataclass(frozen=True)
class Axis:
    """A setting that differs between runs.

    `key`: dotted, as in the configuration. `levels`: its values; the first is the base of
    comparisons.
    """

    key: str
    name: str
    levels: tuple[str, ...]

    @property
    def is_named(self) -> bool:
        """Whether its levels are names that speak for themselves, such as `overlapped`."""
        return self.key in _FIRST or self.key in _NAMES

    def level(self, run: Run) -> str:
        return run.settings.get(self.key, "")

    def short(self, level: str) -> str:
        """A level in words: `overlapped`, `dirsync`, `every 10`."""
        return (
            level.removeprefix("atomic_")
            if self.is_named
            else f"{self.name} {level.strip('[]')}".strip()
        )


def axes_of(runs: Iterable[Run]) -> tuple[Axis, ...]:
    """The axes in which `runs` differ. What follows from the axes before it is none: the parts of a
    write mode, the steps of a schedule, the suite that data set and model make up.
    """
    values = [run.settings for run in runs]
    keys = dict.fromkeys(key for value in values for key in value)
    order = [
        *(key for key in _FIRST if key in keys),
        *(key for key in keys if key not in _FIRST and key != SUITE),
        SUITE,
    ]
    cells: list[tuple[str, ...]] = [()] * len(values)
    chosen: list[str] = []
    for key in order:
        column = [value.get(key, "") for value in values]
        if len(set(column)) > 1 and len(set(zip(cells, column, strict=True))) > len(set(cells)):
            chosen.append(key)
            cells = [(*cell, value) for cell, value in zip(cells, column, strict=True)]
    names = [_name(key) for key in chosen]
    levels = [_ordered(key, {value.get(key, "") for value in values}) for key in chosen]
    unique = [
        key if names.count(name) > 1 else name for key, name in zip(chosen, names, strict=True)
    ]
    return tuple(Axis(*parts) for parts in zip(chosen, unique, levels, strict=True))


def _name(key: str) -> str:
    group, _, name = key.rpartition(".")
    return _NAMES.get(key) or (group if name == "name" else name).replace("_", " ")


_DEFAULTS = flat_config(encode(RunConfig()))


def _ordered(key: str, levels: set[str]) -> tuple[str, ...]:
    order = [
        *_LEVELS.get(key, ()),
        *([_DEFAULTS[key]] if key in _DEFAULTS and not _numeric(levels) else []),
    ]

    def place(level: str) -> tuple[int, float, str]:
        return (
            order.index(level) if level in order else len(order),
            float(level) if _numeric({level}) else 0.0,
            level,
        )

    return tuple(sorted(levels, key=place))


def _numeric(levels: Iterable[str]) -> bool:
    try:
        return all(float(level) == float(level) for level in levels)
    except ValueError:
        return False
