"""The keys that a user may type, taken from the schema, and the error for an unknown one."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from functools import cache
from typing import Any, get_origin

from ecrl_cli.config.codec import hints_of
from ecrl_cli.config.registry import did_you_mean
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import ConfigError, shown

RESERVED = ("_target_", "_recursive_", "_partial_", "_convert_", "_args_")

PACKAGED = "put `# @package _global_` on the first line of the suite's or matrix's file"
_RETIRED = {
    "resume": "start the same command again: a run directory that holds this very run is resumed"
}


@cache
def leaves() -> tuple[str, ...]:
    """Every key of a run, dotted, in the schema's order."""
    return tuple(_leaves(RunConfig, ""))


def _leaves(kind: Any, prefix: str) -> Iterable[str]:
    hints = hints_of(kind)
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(hints[field.name]):
            yield from _leaves(hints[field.name], f"{prefix}{field.name}.")
        else:
            yield prefix + field.name


@cache
def list_keys() -> tuple[str, ...]:
    """The keys of a run that hold a list, dotted."""
    return tuple(key for key in leaves() if get_origin(_hint_of(key)) is tuple)


def _hint_of(key: str) -> Any:
    kind: Any = RunConfig
    for part in key.split("."):
        kind = hints_of(kind)[part]
    return kind


def sections() -> tuple[str, ...]:
    """The keys that hold other keys: `dataset`, `model`, ..."""
    return tuple(dict.fromkeys(key.split(".")[0] for key in leaves() if "." in key))


def is_known(key: str) -> bool:
    """Whether `key` is in the schema, or in one of its mappings (`elastic.schedule.100`)."""
    return key in leaves() or key in sections() or key.startswith("elastic.schedule.")


def unknown_key(key: str, more: Iterable[str] = ()) -> ConfigError:
    """The error for a key that is neither in the schema nor one of `more` (groups from the user's
    own folders).
    """
    head = key.partition(".")[0]
    known = [*leaves(), *sections(), *more]
    misspelt = head if head not in known else key
    remedy = (
        _RETIRED.get(head)
        or (PACKAGED if head in ("suite", "matrix") else "")
        or _suggestion(key, known)
    )
    remedy = remedy or _SECTIONS_ELSEWHERE.get(head) or did_you_mean(head, known)
    return ConfigError(
        key, f"unknown key {shown(misspelt)}", remedy or "`ecrl train --cfg job` shows every key"
    )


# What other trainers call it.
_ELSEWHERE = {
    "learning_rate": "optimizer.lr",
    "wd": "optimizer.weight_decay",
    "batch_size": "global_batch",
    "train_batch_size": "global_batch",
    "steps": "target_steps",
    "max_epochs": "target_steps",
    "max_steps": "target_steps",
    "epochs": "target_steps",
    "save_steps": "checkpoint.every",
    "eval_steps": "evaluate.every",
    "val_check_interval": "evaluate.every",
    "eval_batch_size": "evaluate.batch",
    "per_device_eval_batch_size": "evaluate.batch",
    "nproc_per_node": "world_size",
    "num_processes": "world_size",
    "nnodes": "supervision.nodes",
    "max_restarts": "supervision.max_restarts",
}

_OWN_JOB = (
    "a job of your own, with its own trainer and keys, is judged by `ecrl audit -- COMMAND`"
    " (docs/audit.md)"
)
# The sections of projects that are composed with Hydra, or trained by Lightning.
_SECTIONS_ELSEWHERE = {
    "experiment": (
        "an experiment is a suite: +suite=NAME, your own as DIR/suite/NAME.yaml with --config-dir"
        " DIR (docs/configuration.md)"
    ),
    "hparams_search": (
        "a search is a sweep, `ecrl -m optimizer.lr=0.1,0.01`, or a matrix: +matrix=NAME"
        " (docs/configuration.md)"
    ),
    "trainer": f"the trainer is ECRL's: `ecrl train --cfg job` shows its keys; {_OWN_JOB}",
    "datamodule": (
        f"a data set is dataset=NAME, or a plugin of your own (docs/extend.md); {_OWN_JOB}"
    ),
    "data": f"a data set is dataset=NAME, or a plugin of your own (docs/extend.md); {_OWN_JOB}",
    "callbacks": (
        "checkpoints are checkpoint=, evaluation is evaluate.every, and nothing else is called back"
        " (docs/hydra.md)"
    ),
    "logger": "use tracker=tensorboard, mlflow, wandb or prometheus (docs/configuration.md)",
    "paths": "runs lie under run_dir=DIR, data under dataset.root=DIR (docs/configuration.md)",
}


def _suggestion(key: str, known: list[str]) -> str:
    if elsewhere := _ELSEWHERE.get(key.rsplit(".", 1)[-1]):
        return f"did you mean {elsewhere}?"
    same_ending = [name for name in known if name.rsplit(".", 1)[-1] == key.rsplit(".", 1)[-1]]
    if len(same_ending) == 1:
        return f"did you mean {same_ending[0]}?"
    return "" if key.partition(".")[0] in _SECTIONS_ELSEWHERE else did_you_mean(key, known)


def reserved(key: str) -> ConfigError:
    """The error for a key with which other programs let a configuration run code."""
    return ConfigError(
        key,
        f"{shown(key.rsplit('.', 1)[-1])} is not accepted",
        "ECRL does not instantiate from configuration; choose by name",
    )


def quote(text: str) -> str:
    """`text` quoted so that Hydra's grammar takes it literally."""
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", text)
    return f"'{escaped}'"
