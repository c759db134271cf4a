"""A run's identity: the hash of what changes its result. See docs/decisions/run-id.md."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from ecrl_cli.config.codec import encode
from ecrl_cli.config.schema import RunConfig

# Where a run and its data are does not change what it computes; names are labels. A schedule has
# been converted to `failure.steps`.
NOT_IDENTITY = (
    *("run_dir", "private", "suite_name", "dataset.root", "dataset.download", "scale", "schedule"),
    *(
        "supervision.writer_grace_s",
        "supervision.master_port",
        "supervision.disk_interval_s",
        "supervision.scrub_every_s",
    ),
    *("checkpoint.hmac_key_file", "checkpoint.finite", "checkpoint.digest"),
    "tracker",  # what is shown elsewhere
    "seal",  # signing of the records
    "reference",  # what is trained beside the run
    *(
        "supervision.hang_timeout_s",
        "supervision.hang_factor",
        "supervision.start_timeout_s",
        "supervision.grace_s",
    ),
    "elastic.on_indivisible",  # only the resulting sizes count
)

# Runs that must end in the same state share a reference id: failures, checkpoints and recovery are
# not part of it.
NOT_REFERENCE = (
    *(
        *NOT_IDENTITY,
        "failure",
        "checkpoint",
        "write_mode",
        "storage",
        "recovery",
        "supervision",
        "elastic.schedule",
        "variant",
    ),
    *("state_digests", "evaluate"),
)

# Keys added by a version, with the earlier behaviour: with that value, a configuration has the id
# that earlier versions recorded.
BEFORE = {
    "ddp": {"find_unused_parameters": True},
    "task": {"name": "classification"},
    "evaluate": {"every": 0, "batch": 256},
    "continued_at": [],
    "begins_from": [],
}
# likewise, of a group that there was
BEFORE_IN: dict[str, dict[str, Any]] = {
    "checkpoint": {"capture": "copy"},
    "dataset": {"held_out": 0},
}
BEFORE_DIGEST = "sha256"  # checkpoint.digest of the versions that had no such key


def run_id(config: RunConfig) -> str:
    """64 hex digits; equal for two runs exactly if nothing that changes a result differs."""
    return run_id_of(_as_recorded(config))


def reference_id(config: RunConfig) -> str:
    """64 hex digits; equal for runs that must end bit-identical."""
    return reference_id_of(_as_recorded(config))


def run_id_of(recorded: dict[str, Any]) -> str:
    """`run_id` of a configuration from config.json of any schema version; keys added later may be
    missing.

    A run continued to a higher target keeps its id: it is computed with the first target.
    """
    first = recorded.get("continued_at") or []
    begun = {**recorded, "target_steps": first[0], "continued_at": []} if first else recorded
    return _digest(_without(_as_before(begun), NOT_IDENTITY))


def reference_id_of(recorded: dict[str, Any]) -> str:
    """`reference_id`, likewise. States hashed differently cannot be compared, so runs with another
    checkpoint.digest have another reference.

    Where the learning rate does not depend on the number of steps, a run that was continued must
    end as one planned for all its steps.
    """
    optimizer = recorded.get("optimizer", {})
    if recorded.get("continued_at") and optimizer.get("lr") == optimizer.get("min_lr"):
        recorded = {**recorded, "continued_at": []}
    leave_out = NOT_REFERENCE + (
        ("world_size",) if recorded.get("elastic", {}).get("replicas") else ()
    )
    digest = recorded.get("checkpoint", {}).get("digest", BEFORE_DIGEST)
    hashed = {} if digest == BEFORE_DIGEST else {"digest": digest}
    return _digest(_without(_as_before(recorded), leave_out) | hashed)


def _as_before(recorded: dict[str, Any]) -> dict[str, Any]:
    """`recorded` in the form of earlier versions: without later keys that have the earlier
    behaviour; switches as booleans.
    """
    switches = {"true": True, "false": False}
    kept = {
        key: value for key, value in recorded.items() if key not in BEFORE or value != BEFORE[key]
    }
    for group in BEFORE_IN.keys() & kept.keys():
        kept[group] = {
            key: value for key, value in kept[group].items() if BEFORE_IN[group].get(key) != value
        }
    return kept | {
        key: switches.get(str(kept[key]), kept[key]) for key in ("state_digests",) if key in kept
    }


def _as_recorded(config: RunConfig) -> dict[str, Any]:
    # JSON turns keys into strings
    recorded: dict[str, Any] = json.loads(json.dumps(encode(config)))
    return recorded


def suite_of(config: RunConfig) -> str:
    """The name of the run's suite: as given, else its data set and model."""
    return config.suite_name or f"{config.dataset.name}-{config.model.name}"


def run_name(config: RunConfig, identity: str = "") -> str:
    """The run directory's name: suite, variant, seed and eight hex digits of the run id.
    `identity`: the run id, if known.
    """
    short_id = (identity or run_id(config))[:8]
    return f"{suite_of(config)}-{config.variant.name}-s{config.seed}-{short_id}"


def _without(value: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    kept = {name: dict(item) if isinstance(item, dict) else item for name, item in value.items()}
    for key in keys:
        group, _, name = key.partition(".")
        (kept.get(group, {}) if name else kept).pop(name or group, None)
    return kept


def _digest(value: Any) -> str:
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()
