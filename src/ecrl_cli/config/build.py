"""Builds one checked RunConfig from what Hydra composed: converts every field, applies variant and scale, checks the whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ecrl_cli.config.checks import check
from ecrl_cli.config.convert import convert
from ecrl_cli.config.elastic import Say, normalize_schedule, round_down_world_sizes
from ecrl_cli.config.failures import prune_unused_keys
from ecrl_cli.config.launchers import LAUNCHERS
from ecrl_cli.config.omegaconf_bridge import plain
from ecrl_cli.config.scale import apply_scale
from ecrl_cli.config.schedule import apply_schedule, name_the_suite, reapply_schedule
from ecrl_cli.config.schema import FailureConfig, RunConfig
from ecrl_cli.errors import ConfigError, shown


def build(composed: Mapping[str, Any], typed: frozenset[str] = frozenset(), say: Say = lambda line: None) -> RunConfig:
    """The run that `composed` describes (a DictConfig or plain mapping; a `hydra` node is ignored).

    `typed`: the keys (dotted) and groups that the user typed; a scale does not change them. `say` receives a message for each adjustment.
    Raises ConfigError.
    """
    config = convert(RunConfig, plain(composed))
    if "model.name" in typed and config.model.name.startswith("resnet") and "model.width" not in typed:
        raise ConfigError("model.name", "names a ResNet without its width", f"write model={config.model.name}")
    if config.scale.launcher not in ("", *LAUNCHERS.names()):
        raise ConfigError("scale.launcher", f"must be one of {', '.join(LAUNCHERS.names())}, got {shown(config.scale.launcher)}")
    # The scale first: every arm of a comparison must be scaled alike, from the suite's plan.
    config = name_the_suite(apply_schedule(config, typed), typed)
    scaled = reapply_schedule(round_down_world_sizes(apply_scale(normalize_schedule(config, typed), typed), say), typed)
    if scaled.supervision.launcher != config.supervision.launcher:
        say(f"scale={config.scale.name}: ranks are forked by {scaled.supervision.launcher}; add supervision=torchrun for the default launcher")
    config = _apply_variant(replace(scaled, failure=prune_unused_keys(scaled.failure, typed)), typed)
    check(config)
    return config


def _apply_variant(config: RunConfig, typed: frozenset[str]) -> RunConfig:
    """Drops the failure plan for a variant without failures, or where `failure=none` was typed; drops the schedule for one without resizes."""
    no_failures = config.failure.kind == "none" and typed & {"failure", "failure.kind"} and not typed & {"failure.steps", "failure.mtbf_steps"}
    if no_failures or not config.variant.failures:
        config = replace(config, failure=FailureConfig())
    return config if config.variant.resizes else replace(config, elastic=replace(config.elastic, schedule={}))
