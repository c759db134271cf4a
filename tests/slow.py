"""What `make test` leaves to `make test-slow`, beside the tests that carry the mark themselves: what shows again, in other circumstances, what stays
in `make test`. It stands in one place, so that anybody can see what a green `make test` does not say.

By test, the cases that are left out, each by the beginning of its name; without any, the whole test is.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

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
    "e2e/test_planted_bugs.py::test_what_is_lost_at_a_restore_is_named_without_a_reference": _LIKE_OTHERS,
    "unit/test_study_frameworks.py::test_a_healthy_job_is_valid_and_a_planted_bug_named": ("DDP and DCP-empty optimizer",),
    "unit/test_study_standstill.py::test_what_stands_still_or_dies_ends_as_promised": (
        "SIGSEGV",
        "a late writer",
        "a slow disk",
        "SIGKILL of the agent",
    ),
    "e2e/test_reference.py::test_momentum_dropped_on_restore_is_invalid_alone_and_with_a_reference": (),  # the planted bugs have it
    "unit/test_study_failures.py::test_runs_under_failures_and_over_changing_sizes_come_out_valid": (),  # e2e has runs under failures
    # Another recovery, another strategy, another launcher, another checkpointer.
    "e2e/test_failures.py::test_in_memory_nothing_outlives_the_supervisor_but_what_is_durable": (),
    "e2e/test_interruption.py::test_a_checkpoint_damaged_between_two_attempts_is_rejected_by_name": (),  # the study `corruption` has it
    "e2e/test_deferred_capture.py::test_fixed_replicas_killed_and_resized_end_where_the_undisturbed_ones_do": (),
    "e2e/test_deferred_capture.py::test_kills_at_any_moment_change_nothing": ("in_memory",),
    "e2e/test_deferred_capture.py::test_survivors_go_on_from_a_memory_that_the_writer_copies": ("redistribute",),
    "e2e/test_checkpointers.py::test_state_that_is_not_restored_is_found": ("any_buffers",),
    "contract/test_loopback_only.py::test_a_job_on_one_machine_cannot_be_reached_or_made_to_run_code": ("zygote",),
    "e2e/test_readable_runs.py::test_a_run_is_readable_by_whom_it_should_be": ("false",),
    "e2e/test_added_variants.py::test_what_is_no_picture_recovers_exactly_too": ("text, replicas", "own update, in memory"),
    "e2e/test_added_variants.py::test_what_does_not_belong_together_is_refused_before_the_launch": (
        "task=classification",
        "task=regression",
        "task=next_token",
    ),
    # A larger network of the same family.
    "unit/test_models_build.py::test_every_parameter_of_every_model_gets_a_gradient": ("resnet152",),
    "unit/test_models_build.py::test_dropout_draws_from_the_rng_where_it_is_asked_for": ("resnet152",),
    # Suites, matrices and commands that differ in one word from those that stay.
    "unit/test_cli_grid.py::test_the_arms_of_every_suite_must_end_alike_at_every_scale": tuple(
        f"{scale}-cifar{classes}-{suite}"
        for scale in ("paper", "cpu", "smoke")
        for classes, suite in ((10, "r18-late"), (10, "r50-base"), (100, "r18-base"), (100, "r18-late"), (100, "r50-base"), (100, "r50-late"))
    ),
    "unit/test_config_schedule.py::test_the_axes_are_the_published_matrix": (),  # test_cli_sweep counts its runs
    "contract/test_experiments.py::test_a_command_of_an_experiment_can_be_given": (),
    # `make results`: one experiment is made from nothing, stopped, refused and shown; what else can become of it is left out.
    "contract/test_experiments.py::test_a_sweep_and_a_study_are_kept_as_one": (),
    "contract/test_experiments.py::test_where_only_the_judge_has_changed_the_same_runs_are_judged_anew": (),
    "contract/test_experiments.py::test_a_study_that_has_lost_a_worker_is_not_kept": (),
    "contract/test_experiments.py::test_an_invalid_run_is_kept_and_the_exit_code_says_so": (),
    "contract/test_experiments.py::test_a_run_that_cannot_be_judged_is_kept_as_unknown_and_counts_in_no_promise": (),
    # Pages: each kind in one width stays.
    "e2e/test_report_page.py::test_no_column_is_cut_off": ("page-1400", "studies-1400", "history-1400", "many-1400", "wide-400"),
    "e2e/test_report_page.py::test_it_fits_a_phone": ("studies", "many"),
    "unit/test_report_summary.py::test_whether_the_gain_grows_with_the_state_is_judged_by_the_slopes_interval": ("gains2", "gains4", "gains5"),
    "unit/test_report_paired.py::test_suites_are_pooled_only_on_one_machine_and_of_one_source": ("changes1",),
    "unit/test_report_paired.py::test_a_revision_counts_only_where_the_source_has_no_digest": ("changes2", "changes3", "changes4"),
    # The tests' own machinery.
    "unit/test_session_guards.py::test_a_test_that_reaches_its_limit_fails_alone": (),
}


def mark(items: Iterable[pytest.Item], *, whole_files: bool) -> None:
    """Marks what SLOW names. UsageError where a file of `items`, collected whole, has nothing that an entry names: it has another name by now."""
    files, found = set[str](), set[tuple[str, str]]()
    for item in items:
        name, _, case = item.nodeid.removeprefix("tests/").partition("[")
        files.add(name.partition("::")[0])
        fitting = [each for each in SLOW.get(name, ()) if case.startswith(each)] or ([""] if SLOW.get(name) == () else [])
        if fitting:
            item.add_marker(pytest.mark.slow)
        found |= {(name, each) for each in fitting}
    named = {(name, each) for name, cases in SLOW.items() if name.partition("::")[0] in files for each in cases or ("",)}
    if whole_files and named - found:
        raise pytest.UsageError(f"tests/slow.py names what is not there: {sorted(named - found)}")
