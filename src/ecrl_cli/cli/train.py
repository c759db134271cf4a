"""`ecrl train`: checks the input, then runs it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from ecrl_cli.cli.arguments import parse
from ecrl_cli.cli.console import restrict, say
from ecrl_cli.cli.prepare import (
    Say,
    TrainPlan,
    estimate,
    expected_seconds,
    prepare,
    slowed_by_others,
)
from ecrl_cli.config.codec import encode
from ecrl_cli.config.estimates import human_seconds
from ecrl_cli.config.omegaconf_bridge import yaml_text
from ecrl_cli.config.schema import RunConfig, ScaleConfig
from ecrl_cli.errors import ConfigError, plural
from ecrl_cli.runs.run_plan import references

LONG_S = 600.0  # a run expected to take longer is confirmed first


def train(argv: Sequence[str], *, debug: bool = False, say: Say = say) -> int:
    """The exit code of the runs that `argv` asks for. Raises EcrlError for bad input, with nothing
    written.
    """
    arguments = parse(argv)
    plan = prepare(arguments, say)
    if arguments.show:
        configs = {name: run.config for name, run in plan.runs.items()}
        as_json = (
            json.dumps({name: encode(config) for name, config in configs.items()}, indent=2) + "\n"
            if arguments.json
            else ""
        )
        sys.stdout.write(
            as_json or "---\n".join(suite_file(name, config) for name, config in configs.items())
        )
        return 0
    if any(run.config.scale.name == "paper" for run in plan.runs.values()):
        say(estimate(plan))
    if to_train := [] if plan.launcher.name else references(plan.runs.values()):
        trained = human_seconds(
            sum(reference.estimate_s for reference in to_train) * slowed_by_others()
        )
        what = plural(len(to_train), "undisturbed run")
        say(
            f"reference: {what} afterwards, to compare with, roughly {trained}; reference=none"
            " leaves that out"
        )
    # Other work at most doubles it: a shorter run need not be held up to measure that.
    if (
        not arguments.yes
        and not plan.launcher.on_slurm
        and (expected_s := expected_seconds(plan)) > LONG_S / 2
    ):
        confirm_long_run(expected_s * slowed_by_others(), say)
    return _run(plan, debug=debug, as_json=arguments.json, say=say)


def suite_file(name: str, config: RunConfig) -> str:
    """The resolved configuration of the run `name` as YAML that composes to it again: as
    `DIR/suite/NAME.yaml` with `--config-dir DIR +suite=NAME`.

    The scale keeps its name and loses its factors: they have been applied.
    """
    values = encode(replace(config, scale=ScaleConfig(name=config.scale.name)))
    values["elastic"]["schedule"] = dict(config.elastic.schedule)  # as JSON its keys are strings
    return (
        f"# @package _global_\n# {name}; as DIR/suite/NAME.yaml: ecrl train --config-dir DIR"
        f" +suite=NAME\n{yaml_text(values)}"
    )


def confirm_long_run(expected_s: float, say: Say) -> None:
    """Prints the estimate of a run that takes longer than LONG_S, and asks for confirmation at a
    terminal. Elsewhere (CI, batch job, pipe) it continues without asking. ConfigError, with nothing
    written, where the answer is no.
    """
    if expected_s <= LONG_S:
        return
    expected = (
        f"this takes roughly {human_seconds(expected_s)} on this machine; it can be stopped at any"
        " time and goes on when started again"
    )
    if os.environ.get("CI") or not (sys.stdin.isatty() and sys.stderr.isatty()):
        say(expected)
        return
    sys.stderr.write(f"ecrl: {expected}. Start? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigError(
            "ecrl train",
            "not started",
            "add --yes, or a smaller scale: scale=cpu takes minutes, scale=smoke seconds",
        )


def _run(plan: TrainPlan, *, debug: bool, as_json: bool, say: Say) -> int:
    # Imported here: the supervising side (psutil, rich, numpy) takes half a second, and bad input
    # should fail before that.
    from ecrl_cli.cli.hydra_jobs import Jobs
    from ecrl_cli.runs.sweep import exit_code

    jobs = Jobs(plan, say, debug)
    mask = restrict(private=any(run.config.private for run in plan.runs.values()))
    try:
        jobs.run()
    finally:
        os.umask(mask)
    if as_json:
        ended = {
            name: {"run_dir": str(jobs.folder(name)), **encode(result)}
            for name, result in jobs.results.items()
        }
        sys.stdout.write(json.dumps(ended, indent=2) + "\n")
    else:
        say(
            f"next: ecrl verify {plan.folder}; ecrl report {plan.folder}"
            if plan.swept
            else f"next: ecrl verify {plan.folder}"
        )
    return exit_code(jobs.results)
