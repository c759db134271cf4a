"""Maps a study's name to its code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ecrl_cli.config.registry import Registry

if TYPE_CHECKING:  # `ecrl study --help` needs only the names
    from ecrl_cli.studies.frame.study import PreparedStudy, Study, StudyContext

# Each names a `Study`.
_STUDIES = Registry(
    "study",
    "ecrl.studies",
    {
        "write-latency": "ecrl_cli.studies.write_latency:STUDY",
        "crash-points": "ecrl_cli.studies.crash_points.study:STUDY",
        "power-loss": "ecrl_cli.studies.power_loss.study:STUDY",
        "corruption": "ecrl_cli.studies.corruption.study:STUDY",
        "io-errors": "ecrl_cli.studies.io_errors.study:STUDY",
        "disk-timeline": "ecrl_cli.studies.disk_timeline:STUDY",
        "writers": "ecrl_cli.studies.writers.study:STUDY",
        "hangs": "ecrl_cli.studies.hangs.study:STUDY",
        "signals": "ecrl_cli.studies.signals:STUDY",
        "hostile": "ecrl_cli.studies.hostile.study:STUDY",
        "store-soak": "ecrl_cli.studies.store_soak.study:STUDY",
        "failures": "ecrl_cli.studies.training.failures:STUDY",
        "elastic": "ecrl_cli.studies.training.elastic:STUDY",
        "live-recovery": "ecrl_cli.studies.training.live:STUDY",
        "compat": "ecrl_cli.studies.compat:STUDY",
        "frameworks": "ecrl_cli.studies.frameworks.study:STUDY",
        "rivals": "ecrl_cli.studies.rivals.study:STUDY",
        "libraries": "ecrl_cli.studies.libraries.study:STUDY",
        "recovery-overhead": "ecrl_cli.replication.overhead.study:STUDY",
        "mini-batch-failure": "ecrl_cli.replication.mini_batch.study:STUDY",
    },
)


def names() -> tuple[str, ...]:
    """Names of all studies: built-in, then those of installed packages."""
    return _STUDIES.names()


def load_study(name: str) -> Study:
    """The study of that name. Raises ConfigError if there is none."""
    found: Study = _STUDIES.load(name)
    return found


def make_study(context: StudyContext) -> PreparedStudy:
    """Open the study that `context.config` names."""
    return load_study(context.config.name).open(context)
