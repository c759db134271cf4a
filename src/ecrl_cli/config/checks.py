"""Rules between keys: one function per rule, each with its own error message. Rules of one failure
kind are in its class, those of the `failure` group in plan_kinds.py.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from ecrl_cli.config.elastic import fits, misfit, next_fitting
from ecrl_cli.config.launchers import launcher_of
from ecrl_cli.config.plan_kinds import plan_kind
from ecrl_cli.config.recoveries import recovery_of
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.errors import ConfigError, plural, shown

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
_INITIAL = re.compile(r"^initial/step_[0-9]{8}(\.safetensors|\.pt)?\Z")
_WRITE_MODES = {
    "unsafe": (False, False, False),
    "atomic_nodirsync": (True, True, False),
    "atomic_dirsync": (True, True, True),
}


def check(config: RunConfig) -> None:
    """ConfigError for the first rule that `config` breaks."""
    for rule in _RULES:
        rule(config)


def _names(config: RunConfig) -> None:
    for key, name in (("suite_name", config.suite_name), ("variant.name", config.variant.name)):
        if (name or key == "variant.name") and not _NAME.match(name):
            raise ConfigError(
                key, f"names a folder, got {shown(name)}", "use letters, digits, '.', '_' and '-'"
            )
    if not config.dataset.root:
        raise ConfigError("dataset.root", "has no value", "give a folder: dataset.root=data")


def _geometry(config: RunConfig) -> None:
    batch, ranks, replicas = config.global_batch, config.world_size, config.elastic.replicas
    if replicas:
        _replicas(batch, replicas)
        if not fits(config, ranks):
            raise ConfigError(
                "world_size",
                f"{plural(ranks, 'rank')} {misfit(config)}: each needs one",
                f"use at most {replicas}",
            )
    elif batch % ranks:
        below = batch - batch % ranks
        ways = " or ".join(str(size) for size in (below, below + ranks) if size)
        raise ConfigError(
            "global_batch", f"{batch} is not divisible by world size {ranks}", f"use {ways}"
        )


def _legs(config: RunConfig) -> None:
    reached = (*config.continued_at, config.target_steps)
    if any(after <= before for before, after in itertools.pairwise(reached)):
        raise ConfigError(
            "continued_at",
            f"must be strictly increasing and below target_steps, got {list(reached)}",
        )


def _begins(config: RunConfig) -> None:
    given = config.begins_from
    if given and (len(given) != 3 or not _INITIAL.match(given[0])):
        raise ConfigError(
            "begins_from",
            "must be a checkpoint in initial/, the SHA-256 of its commit and a run id, got"
            f" {shown(list(given))}",
        )


def _replicas(batch: int, replicas: int) -> None:
    """ConfigError unless all replicas are equally large: otherwise the mean of their means is not
    the mean of the batch.
    """
    if batch % replicas:
        near = [max(fewer for fewer in range(1, min(replicas, batch) + 1) if batch % fewer == 0)]
        near += [more for more in range(replicas + 1, batch + 1) if batch % more == 0][:1]
        raise ConfigError(
            "elastic.replicas",
            f"global_batch {batch} is not divisible by {plural(replicas, 'replica')}",
            f"use {' or '.join(map(str, near))}",
        )


def _schedule(config: RunConfig) -> None:
    schedule = config.elastic.schedule
    for step, size in schedule.items():
        if not fits(config, size):
            raise ConfigError(
                "elastic.schedule",
                f"{plural(size, 'rank')} from step {step} on {misfit(config)}",
                f"use {next_fitting(config, size)}",
            )
        if step >= config.target_steps:
            raise ConfigError(
                "elastic.schedule",
                f"step {step} is not below target_steps {config.target_steps}",
                "lower it or raise target_steps",
            )


def _learning_rate(config: RunConfig) -> None:
    if config.optimizer.min_lr > config.optimizer.lr:
        raise ConfigError(
            "optimizer.min_lr",
            f"{config.optimizer.min_lr:g} is above optimizer.lr {config.optimizer.lr:g}",
            "lower it",
        )


def _checkpoints(config: RunConfig) -> None:
    checkpoint = config.checkpoint
    if not strategy_of(config).saves:
        return
    if checkpoint.every > config.target_steps and not checkpoint.final:
        fact = (
            f"no checkpoint would be taken before step {config.target_steps}, got"
            f" {checkpoint.every}"
        )
        raise ConfigError("checkpoint.every", fact, "lower it or set checkpoint.final=true")
    if checkpoint.format == "torch" and checkpoint.layout != "single":
        raise ConfigError(
            "checkpoint.format",
            "torch is a single file, checkpoint.layout is group",
            "add checkpoint.layout=single",
        )


def _write_mode(config: RunConfig) -> None:
    mode = config.write_mode
    if (mode.sync_files, mode.atomic, mode.sync_directories) != _WRITE_MODES[mode.name]:
        raise ConfigError(
            "write_mode",
            f"the switches contradict the name {mode.name}",
            "choose a whole mode: write_mode=NAME",
        )


def _nodes(config: RunConfig) -> None:
    nodes = config.supervision.nodes
    if nodes == 1:
        return
    if config.world_size % nodes:
        ways = (
            f"use world_size={config.world_size - config.world_size % nodes + nodes} or another"
            " number of nodes"
        )
        raise ConfigError(
            "supervision.nodes",
            f"{plural(config.world_size, 'rank')} cannot be shared equally by"
            f" {plural(nodes, 'node')}",
            ways,
        )
    if config.elastic.schedule:
        raise ConfigError(
            "elastic.schedule",
            f"a planned change of the world size on {plural(nodes, 'node')} is not supported",
            "use supervision.nodes=1",
        )


def _storage(config: RunConfig) -> None:
    folder = config.storage.folder
    if folder and not (folder.startswith("/") and Path(folder).is_dir()):
        raise ConfigError(
            "storage.folder",
            f"{shown(folder)} is no folder with an absolute path",
            "name one that is there, or choose storage=disk",
        )


def _supervision(config: RunConfig) -> None:
    port = config.supervision.master_port
    if port and not 1024 <= port <= 65535:
        raise ConfigError(
            "supervision.master_port",
            f"port must be 1024-65535 and free, got {port}",
            "leave it out: a free one is taken",
        )


def _variants(config: RunConfig) -> None:
    """The rules of the launcher, the recovery and the strategy."""
    for variant in (launcher_of(config), recovery_of(config), strategy_of(config)):
        variant.refuse(config)


def check_failures(config: RunConfig) -> None:
    """ConfigError for the first rule that the planned failures break."""
    plan_kind(config.failure.kind).check(config)


_RULES = (
    _names,
    _legs,
    _begins,
    _geometry,
    _variants,
    _nodes,
    _schedule,
    _learning_rate,
    _checkpoints,
    _write_mode,
    _storage,
    check_failures,
    _supervision,
)
