"""What `make test` leaves to `make test-slow`, beside the tests that carry the mark themselves:
what shows again, in other circumstances, what stays in `make test`, and some of the tools of those
who work on ECRL. In one place, so that anybody can see what a green `make test` does not say.

By test, the cases that are left out, each by the beginning of its name; without any, the whole test
is.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
_LIKE_OTHERS = (
    "the last train.json without momentum",
    "the last train.json without weight decay",
    "the last train.json with the schedule behind",
    "rank 1 undoes its last update",
    "rank 1 steps its schedule twice",
    "the scaler is restored with half its scale",
    "the learning rate begins anew",
    "the momentum's factor is lost",
    "the seed is set after the state is restored",
    "Adam counts its steps anew",
    "rank 1 resumes one window ahead",
    "the newcomer has twice the learning rate",
    "the newcomer has other parameters",
)
SLOW: dict[str, tuple[str, ...]] = {
    # Planted bugs: one of each kind stays.
    "e2e/test_planted_bugs.py::test_a_bug_in_the_training_state_is_found_by_default": _LIKE_OTHERS,
    "e2e/test_planted_bugs.py::test_what_is_lost_at_a_restore_is_named_without_a_reference": (
        _LIKE_OTHERS
    ),
    "unit/test_study_standstill.py::test_what_stands_still_or_dies_ends_as_promised": (
        "SIGSEGV",
        "a late writer",
        "a slow disk",
        "SIGKILL of the agent",
    ),
    # e2e has runs under failures
    "unit/test_study_failures.py::test_runs_under_failures_and_changing_sizes_are_valid": (),
    # Another recovery, another strategy, another launcher, another checkpointer.
    "e2e/test_failures.py::test_in_memory_nothing_outlives_the_supervisor_but_what_is_durable": (),
    "e2e/test_deferred_capture.py::test_kills_at_any_moment_change_nothing": ("in_memory",),
    "e2e/test_deferred_capture.py::test_survivors_go_on_from_a_memory_that_the_writer_copies": (
        "redistribute",
    ),
    "e2e/test_checkpointers.py::test_state_that_is_not_restored_is_found": ("any_buffers",),
    "e2e/test_readable_runs.py::test_a_run_is_readable_by_whom_it_should_be": ("false",),
    # Tokens in contract/test_tasks.py, replicas in e2e/test_replicas.py.
    "e2e/test_added_variants.py::test_what_is_no_picture_recovers_exactly_too": (
        "own update, in memory",
        "text, replicas",
    ),
    "e2e/test_added_variants.py::test_what_does_not_belong_together_is_refused_before_the_launch": (
        "task=classification",
        "task=regression",
    ),
    # What ends a torchrun attempt in a launcher's stand-in ends a real one in
    # e2e/test_exact_recovery.py.
    "contract/test_launchers.py::test_a_planned_exit_keeps_its_code": ("torchrun",),
    "contract/test_launchers.py::test_what_a_rank_says_before_it_ends_is_heard": ("torchrun",),
    # The kept results' own commands, which `make results` composes too; those that readers type
    # stay (contract/test_docs_commands.py).
    "contract/test_experiments.py::test_a_command_of_an_experiment_can_be_given": (),
    "contract/test_features_page.py::test_a_command_of_the_page_can_be_given": (),
    # A larger network of the same family.
    "unit/test_models_build.py::test_every_parameter_of_every_model_gets_a_gradient": (
        "resnet152",
    ),
    "unit/test_models_build.py::test_dropout_draws_from_the_rng_where_it_is_asked_for": (
        "resnet152",
    ),
    # Suites, matrices and commands that differ in one word from those that stay.
    "unit/test_cli_grid.py::test_the_arms_of_every_suite_must_end_alike_at_every_scale": tuple(
        f"{scale}-cifar{classes}-{suite}"
        for scale in ("paper", "cpu", "smoke")
        for classes, suite in (
            (10, "r18-late"),
            (10, "r50-base"),
            (100, "r18-base"),
            (100, "r18-late"),
            (100, "r50-base"),
            (100, "r50-late"),
        )
    ),
    # The one is run whole in e2e/test_recoveries.py, the means of the other are in
    # unit/test_cli_grid.py.
    "unit/test_cli_sweep.py::test_a_matrix_beyond_the_published_varies_what_it_says": (
        "recoveries",
        "failure-rate",
    ),
    # One scale of those that differ in a factor alone; that each scale composes, the arms of every
    # suite show.
    "unit/test_cli_grid.py::test_experiment_2_goes_from_two_ranks_to_one_half_way_at_every_scale": (
        "gpu",
        "cpu",
    ),
    "unit/test_cli_grid.py::test_the_sweep_of_intervals_changes_nothing_but_the_interval": (
        "gpu",
        "cpu",
    ),
    "unit/test_cli_grid.py::test_a_typed_scale_makes_the_same_runs": ("cpu",),
    # test_cli_sweep counts its runs
    "unit/test_config_schedule.py::test_the_axes_are_the_published_matrix": (),
    # Planted into real runs; the same faults in records stand in
    # contract/test_verify_spoilt_runs.py, row by row.
    "e2e/test_planted_store_bugs.py::test_a_planted_bug_breaks_its_promise": (),
    "e2e/test_planted_store_bugs.py::test_without_a_bug_the_promises_are_kept": (),
    "e2e/test_planted_store_bugs.py::test_a_fault_that_did_nothing_is_missed": (),
    # What e2e/test_failures.py shows of each kind.
    "e2e/test_matrix.py::test_a_cell_of_the_matrix_of_failures_is_valid": (),
    # A whole audit from an environment without torch; that it starts without, the other test of its
    # file shows, and audits e2e/test_audit.py.
    "contract/test_without_torch.py::test_an_audit_runs_a_job_that_has_a_torch_of_its_own": (),
    # Tools of those who work on ECRL: of `make results`, what else can become of an experiment that
    # is made from nothing, stopped, refused and shown.
    "contract/test_experiments.py::test_a_sweep_and_a_study_are_kept_as_one": (),
    # that a sweep goes on, test_cli_sweep
    "contract/test_experiments.py::test_made_again_it_goes_on_and_names_two_sessions": (),
    "contract/test_experiments.py::test_kept_runs_are_judged_anew": (),
    "contract/test_experiments.py::test_a_study_that_has_lost_a_worker_is_not_kept": (),
    "contract/test_experiments.py::test_an_invalid_run_is_kept_and_the_exit_code_says_so": (),
    "contract/test_experiments.py::test_a_run_that_cannot_be_judged_is_kept_as_unknown": (),
    # Pages: each kind in one width stays.
    "e2e/test_report_page.py::test_no_column_is_cut_off": (
        "page-1400",
        "studies-1400",
        "history-1400",
        "many-1400",
        "wide-400",
    ),
    "e2e/test_report_page.py::test_it_fits_a_phone": ("studies", "many"),
    # The time limit of a test.
    "unit/test_session_guards.py::test_a_test_that_reaches_its_limit_fails_alone": (),
}


# entries that name nothing in a file that was collected
MISSING = pytest.StashKey[list[tuple[str, str]]]()


def mark(config: pytest.Config, items: Iterable[pytest.Item]) -> None:
    """Marks what SLOW names, and notes in MISSING which entries name nothing."""
    files, found = set[str](), set[tuple[str, str]]()
    for item in items:
        file = item.path.relative_to(TESTS).as_posix() if item.path.is_relative_to(TESTS) else ""
        name, _, case = f"{file}::{item.nodeid.partition('::')[2]}".partition("[")
        files.add(file)
        fitting = (
            [each for each in SLOW[name] or ("",) if case.startswith(each)] if name in SLOW else []
        )
        if fitting:
            item.add_marker(pytest.mark.slow)
        found |= {(name, each) for each in fitting}
    named = {
        (name, each)
        for name, cases in SLOW.items()
        if name.partition("::")[0] in files
        for each in cases or ("",)
    }
    config.stash[MISSING] = sorted(named - found)
