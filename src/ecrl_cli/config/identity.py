"""A run's identity: the hash of what changes its result. See docs/decisions/run-id.md."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from ecrl_cli.config.codec import encode
from ecrl_cli.config.schema import RunConfig

# Where a run lives and where its data lies do not change what it computes; names only label it.
NOT_IDENTITY = (
    *("run_dir", "suite_name", "dataset.root", "dataset.download", "scale"),
    *("supervision.writer_grace_s", "supervision.master_port", "supervision.disk_interval_s", "checkpoint.hmac_key_file"),
)

# Two runs that must end in the same state share a reference id: how they are struck, saved and brought back is not part of it.
NOT_REFERENCE = (*NOT_IDENTITY, "failure", "checkpoint", "write_mode", "recovery", "supervision", "elastic.schedule", "variant", "state_digests")


def run_id(config: RunConfig) -> str:
    """64 hex digits; equal for two runs exactly if nothing that changes a result differs."""
    return _digest(_without(encode(config), NOT_IDENTITY))


def reference_id(config: RunConfig) -> str:
    """64 hex digits; equal for runs that must end bit for bit alike."""
    leave_out = NOT_REFERENCE + (("world_size",) if config.elastic.replicas else ())
    return _digest(_without(encode(config), leave_out))


def run_name(config: RunConfig) -> str:
    """The run directory's name: suite, variant, seed and eight hex digits of the run id."""
    suite = config.suite_name or f"{config.dataset.name}-{config.model.name}"
    return f"{suite}-{config.variant.name}-s{config.seed}-{run_id(config)[:8]}"


def _without(value: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    kept = {name: dict(item) if isinstance(item, dict) else item for name, item in value.items()}
    for key in keys:
        group, _, name = key.partition(".")
        (kept[group] if name else kept).pop(name or group, None)
    return kept


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
