"""`make quick`, for every change: `python -m tests.quick [pytest's options]` runs QUICK, the files
whose tests start no process and import no torch.

A guard holds them to it: a test of QUICK that does either fails, and says so. Put it into another
file then, or the file out of QUICK.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
# audit events (docs.python.org, audit_events)
STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec"}
REFUSED = "a quick test must not {}: see tests/quick.py"
QUICK = (
    "contract/test_study_gates.py",
    "contract/test_verify_boundaries.py",
    "contract/test_verify_failures.py",
    "contract/test_verify_fault_moments.py",
    "contract/test_verify_kept.py",
    "contract/test_verify_recalled.py",
    "contract/test_verify_redistributed.py",
    "contract/test_verify_replicas.py",
    "contract/test_verify_reports_of_survivors.py",
    "contract/test_verify_resized.py",
    "contract/test_verify_restored.py",
    "contract/test_verify_sealed.py",
    "contract/test_verify_sentences.py",
    "contract/test_verify_sentences_of_evaluations.py",
    "contract/test_verify_sentences_of_failures.py",
    "contract/test_verify_sentences_of_files.py",
    "contract/test_verify_sentences_of_journals.py",
    "contract/test_verify_sentences_of_states.py",
    "contract/test_verify_sentences_of_steps.py",
    "contract/test_verify_sentences_of_trajectories.py",
    "contract/test_verify_session_code.py",
    "contract/test_verify_shrunk.py",
    "contract/test_verify_states.py",
    "contract/test_verify_survived.py",
    "contract/test_verify_tolerances.py",
    "contract/test_verify_unusual_evidence.py",
    "contract/test_verify_unusual_records.py",
    "contract/test_verify_writer.py",
    "unit/test_bench_table.py",
    "unit/test_checkpoint_diagnose.py",
    "unit/test_checkpoint_folder_manifest.py",
    "unit/test_checkpoint_hmac.py",
    "unit/test_checkpoint_manifest.py",
    "unit/test_checkpoint_protocol.py",
    "unit/test_checkpoint_repair_refusals.py",
    "unit/test_checkpoint_store_refusals.py",
    "unit/test_checkpoint_times.py",
    "unit/test_cli_compare.py",
    "unit/test_cli_manifest.py",
    "unit/test_cli_scrub.py",
    "unit/test_config_identity.py",
    "unit/test_config_machine.py",
    "unit/test_data_order.py",
    "unit/test_data_preflight.py",
    "unit/test_docstrings.py",
    "unit/test_failures_entries.py",
    "unit/test_history_folds.py",
    "unit/test_history_exactly_once.py",
    "unit/test_history_membership.py",
    "unit/test_metadata.py",
    "unit/test_metrics_accounts.py",
    "unit/test_metrics_numbers.py",
    "unit/test_metrics_statistics.py",
    "unit/test_records_lines.py",
    "unit/test_published_runs.py",
    "unit/test_report_published_tables.py",
    "unit/test_report_recoveries.py",
    "unit/test_report_tables.py",
    "unit/test_report_timeline_view.py",
    "unit/test_rough_errors.py",
    "unit/test_runs_periodic_scrub.py",
    "unit/test_runs_run_dir.py",
    "unit/test_storage_fault_injecting_fs.py",
    "unit/test_storage_fs.py",
    "unit/test_storage_heartbeat_fs.py",
    "unit/test_storage_links.py",
    "unit/test_storage_memory_fs.py",
    "unit/test_study_power_loss_model.py",
    "unit/test_study_store_soak.py",
    "unit/test_supervision_attempt_monitor.py",
    "unit/test_supervision_checkpoint_reconciliation.py",
    "unit/test_supervision_console.py",
    "unit/test_supervision_grace_budget.py",
    "unit/test_supervision_hang_detector.py",
    "unit/test_supervision_restart_policy.py",
    "unit/test_supervision_resume.py",
    "unit/test_training_worker.py",
    "unit/test_verify_sample_accounting.py",
    "unit/test_verify_signals.py",
    "unit/test_verify_time.py",
    "unit/test_verify_verdict.py",
)
_refused: list[str] = []


def pytest_collection(session: pytest.Session) -> None:
    """From here on, collecting included, in each process that runs tests; a hook cannot be taken
    away again.
    """
    starts_workers = session.config.getoption("numprocesses", None) and not hasattr(
        session.config, "workerinput"
    )
    if not starts_workers:
        sys.addaudithook(_guard)


def _guard(event: str, arguments: tuple[Any, ...]) -> None:
    what = (
        f"start a process ({event})"
        if event in STARTS
        else "import torch"
        if event == "import" and arguments[0] == "torch"
        else ""
    )
    if what:
        _refused.append(REFUSED.format(what))
        pytest.fail(_refused[-1])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    """What a test has caught fails it all the same."""
    _refused.clear()
    result = yield
    if _refused:
        pytest.fail(_refused[0])
    return result


def main(options: list[str]) -> int:
    files = [f"tests/{name}" for name in QUICK]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.quick",
        "-n",
        "2",
        "--dist",
        "loadfile",
        *options,
        *files,
    ]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
