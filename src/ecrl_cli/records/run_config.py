"""config.json: a run's resolved configuration, written once and from then on authoritative."""

from __future__ import annotations

from dataclasses import dataclass

from ecrl_cli.config.codec import decode, encode
from ecrl_cli.config.identity import BEFORE_DIGEST, reference_id, run_id
from ecrl_cli.config.launchers import launcher_of
from ecrl_cli.config.recoveries import recovery_of
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.errors import ConfigError, EvidenceMissing, RecordError
from ecrl_cli.records.events import SCHEMA_VERSION
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.safe_read import MAX_JOURNAL
from ecrl_cli.storage.files import write_json


@dataclass(frozen=True)
class StoredConfig:
    """The content of config.json."""

    schema_version: int
    run_id: str
    reference_id: str
    config: RunConfig


def store(config: RunConfig) -> StoredConfig:
    """`config` with its run id and reference id."""
    return StoredConfig(SCHEMA_VERSION, run_id(config), reference_id(config), config)


def write_run_config(layout: RunLayout, config: RunConfig) -> None:
    """Write config.json durably. `run_dir` is left empty, so that a copied or moved run stays
    valid.
    """
    document = encode(store(config))
    document["config"]["run_dir"] = ""
    write_json(layout.config, document)


def read_run_config(layout: RunLayout) -> StoredConfig:
    """Read config.json; EvidenceMissing if there is none, RecordError if it is damaged or of
    another schema.
    """
    if not layout.root.exists():
        raise EvidenceMissing(
            str(layout.root),
            "is gone: the run directory was removed",
            "restore it, or name another one",
        )
    if not layout.config.exists():
        raise EvidenceMissing(
            str(layout.root), "has no config.json", "name a run directory of ecrl train"
        )
    value = read_json(layout.config)
    version = value.get("schema_version") if isinstance(value, dict) else None
    if version != SCHEMA_VERSION:
        raise RecordError(
            "config.json",
            f"schema version {version}, this ECRL reads {SCHEMA_VERSION}",
            "use the version that wrote the run",
        )
    if isinstance(value.get("config"), dict) and isinstance(
        checkpoint := value["config"].get("checkpoint"), dict
    ):
        checkpoint.setdefault("digest", BEFORE_DIGEST)
    try:
        stored = decode(StoredConfig, value)
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(
            "config.json", f"not a run configuration ({error})", "restore the file"
        ) from error
    _check_variants(stored.config)
    return stored


def _check_variants(config: RunConfig) -> None:
    """EvidenceMissing if a variant of the run belongs to a package that is not installed: what the
    run should have done is unknown, so it cannot be judged.
    """
    for look_up in (recovery_of, strategy_of, launcher_of):
        try:
            look_up(config)
        except ConfigError as error:
            raise EvidenceMissing(
                "config.json",
                error.fact,
                f"install the package that the run was made with ({error.remedy})",
            ) from error


def journal_bytes(config: RunConfig) -> int:
    """Size limit, in bytes, of a log of one attempt: a budget for each step that it can have.

    A line takes a few hundred bytes, with replicas some more for each; there are about a dozen
    spans and checkpoint lines per step; lost-sample records list the samples of a step, committed
    lines a digest of each rank's generators.
    """
    ranks = max(config.world_size, *config.elastic.schedule.values(), 0)
    per_step = (
        4096
        + 32 * config.elastic.replicas
        + 96 * ranks
        + (64 * config.global_batch if recovery_of(config).from_memory else 0)
    )
    return min(MAX_JOURNAL, 2**20 + per_step * config.target_steps)
