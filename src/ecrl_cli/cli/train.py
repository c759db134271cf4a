"""`ecrl train`: refuse what cannot run, then hand over to Hydra, whose sweeper comes back through our launcher."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

import hydra

from ecrl_cli.cli.arguments import parse
from ecrl_cli.cli.compose import PRIMARY, VERSION_BASE, quote, search_override
from ecrl_cli.cli.launcher_settings import chosen, overrides_for_hydra
from ecrl_cli.cli.prepare import Plan, Say, estimate, expected_seconds, prepare, references
from ecrl_cli.config.codec import encode
from ecrl_cli.config.conf_paths import conf_dir
from ecrl_cli.config.estimates import human_seconds
from ecrl_cli.errors import ConfigError
from ecrl_cli.runs.reference import estimate_s

LONG_S = 600.0  # what takes longer is asked about first


def train(argv: Sequence[str], *, debug: bool, say: Say) -> int:
    """The exit code of the runs that `argv` asks for. Raises EcrlError for bad input, with nothing written."""
    arguments = parse(argv)
    plan = prepare(arguments, say)
    if arguments.show:
        _show(plan)
        return 0
    if any(config.scale.name == "paper" for config in plan.configs().values()):
        say(estimate(plan))
    if behind := {} if arguments.engine else references(plan):
        trained = human_seconds(sum(map(estimate_s, behind.values())))
        say(f"reference: {len(behind)} undisturbed run(s) behind them, to hold them against, roughly {trained}; reference=none leaves that out")
    if not arguments.yes and chosen(arguments.engine) != "submitit_slurm":
        confirm_long_run(expected_seconds(plan), say)
    texts = [override.input_line or "" for override in arguments.overrides]
    texts += [*search_override(arguments.search), *overrides_for_hydra(arguments.engine)]
    return _hand_over(plan, texts, debug=debug, as_json=arguments.json, say=say)


def confirm_long_run(expected_s: float, say: Say) -> None:
    """Say where a run is expected to take longer than LONG_S, and ask a person at a terminal. Elsewhere (CI, a batch job, a pipe) nobody could
    answer: it goes on. ConfigError where the answer is no; nothing was written then.
    """
    if expected_s <= LONG_S:
        return
    expected = f"this takes roughly {human_seconds(expected_s)} on this machine; it can be stopped at any time and goes on when started again"
    if os.environ.get("CI") or not (sys.stdin.isatty() and sys.stderr.isatty()):
        say(expected)
        return
    sys.stderr.write(f"ecrl: {expected}. Start? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigError("ecrl train", "not started", "add --yes, or a smaller scale: scale=cpu takes minutes, scale=smoke seconds")


def _show(plan: Plan) -> None:
    sys.stdout.write(json.dumps({name: encode(config) for name, config in plan.configs().items()}, indent=2) + "\n")


def _hand_over(plan: Plan, overrides: list[str], *, debug: bool, as_json: bool, say: Say) -> int:
    # Here and not above: the supervising side (psutil, rich, numpy) loads in half a second that bad input need not wait for.
    from ecrl_cli.cli.hydra_jobs import Jobs
    from ecrl_cli.runs.run_dir_link import link_run_dir
    from ecrl_cli.runs.sweep import exit_code

    if not plan.swept:  # Hydra makes the folder, and then it is too late to put it elsewhere
        link_run_dir(*next((cell.config, plan.folder) for cell in plan.cells.values()))
    jobs = Jobs(plan, say, debug)
    mask, argv = os.umask(0o077), sys.argv
    # Hydra's own file of the sweep goes into .hydra/, not beside the user's files.
    sys.argv = [PRIMARY, *overrides, "hydra.mode=MULTIRUN", f"hydra.sweep.dir={quote(str(plan.folder / '.hydra'))}"]
    try:
        hydra.main(config_path=str(conf_dir()), config_name=PRIMARY, **VERSION_BASE)(jobs)()
    finally:
        sys.argv = argv
        os.umask(mask)
    if as_json:
        ended = {name: {"run_dir": str(jobs.references.get(name, plan.run_dir(name))), **encode(result)} for name, result in jobs.results.items()}
        sys.stdout.write(json.dumps(ended, indent=2) + "\n")
    elif plan.swept:
        say(f"next: ecrl verify {plan.folder}; ecrl report {plan.folder}")
    return exit_code(jobs.results)
