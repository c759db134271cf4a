"""`make results`: makes what docs/results keeps, from nothing: `python -m experiments [NAME...]
[--data DIR]`.

Each experiment is run, verified, reported and kept with its page, in the order given; started
again, it goes on. Exit code 1: a verdict or gate failed, which the page says; 2: refused; 3: a
verdict is missing; 130: stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from experiments.make import Stopped, judge, make
from experiments.pages import ESTIMATES, write
from experiments.registry import EVERYTHING, ROOT, Experiment, ExperimentError, read

from ecrl_cli.cli.arguments import parse
from ecrl_cli.cli.prepare import expected_seconds, prepare
from ecrl_cli.config.estimates import human_seconds
from ecrl_cli.errors import EcrlError
from ecrl_cli.report.text.study_summary import worst_code

DEFAULT = "quickstart"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments", description="Make the results that docs/results keeps."
    )
    parser.add_argument(
        "names",
        nargs="*",
        default=[DEFAULT],
        help=f"experiments (default: {DEFAULT}), or {EVERYTHING}",
    )
    parser.add_argument(
        "--data",
        default=os.environ.get("ECRL_TEST_DATA", ""),
        help="a folder with cifar10/ and cifar100/ in it",
    )
    parser.add_argument(
        "--outputs",
        type=Path,
        default=Path("outputs"),
        help="where they are run (default: outputs)",
    )
    parser.add_argument(
        "--pages", action="store_true", help="run nothing; write all pages anew from what is kept"
    )
    parser.add_argument(
        "--judge",
        action="store_true",
        help="run nothing; judge the kept runs anew, as long as they lie in --outputs",
    )
    parser.add_argument(
        "--estimate",
        action="store_true",
        help="run nothing; write down what ECRL expects the named sweeps to take here",
    )
    options = parser.parse_args(argv)
    try:
        registry = read()
        chosen = registry.chosen(options.names)
        if options.estimate:
            _estimate(registry.chosen(options.names), options.data)
            write(registry)
            return 0
        if options.judge:
            code = worst_code([judge(experiment, options.outputs) for experiment in chosen])
        else:
            code = (
                0
                if options.pages
                else _make(
                    chosen, options.outputs, options.data, everything=EVERYTHING in options.names
                )
            )
        write(registry)
        return code
    except ExperimentError as error:
        print(f"experiments: {error}", file=sys.stderr)
        return 2
    except Stopped:
        print("experiments: stopped; the same command goes on from here", file=sys.stderr)
        return 130


def _make(chosen: list[Experiment], outputs: Path, data: str, *, everything: bool) -> int:
    """The worst code of all; with `all`, what needs images is passed over where there are none."""
    codes = []
    for experiment in chosen:
        if everything and experiment.wants_data and not data:
            print(f"experiments: {experiment.name}: passed over: needs DATA=DIR", file=sys.stderr)
            continue
        codes.append(make(experiment, outputs, data))
        print(
            f"experiments: {experiment.name}: kept in {experiment.folder.relative_to(ROOT)}",
            file=sys.stderr,
        )
    return worst_code(codes)


def _estimate(chosen: list[Experiment], data: str) -> None:
    """What `ecrl -m ...` itself expects of each sweep that this machine can run, from nothing, into
    docs/results/estimates.json.
    """
    found = json.loads(ESTIMATES.read_text(encoding="utf-8")) if ESTIMATES.is_file() else {}
    for experiment in chosen:
        if experiment.is_study or experiment.needs or (experiment.wants_data and not data):
            continue
        # studies estimate nothing
        sweeps = [
            given
            for given in experiment.given(Path("outputs") / "none", data)
            if given[0] != "study"
        ]
        plans = [prepare(parse(given), lambda line: None) for given in sweeps]
        found[experiment.name] = {
            "runs": sum(len(plan.runs) for plan in plans),
            "seconds": round(sum(map(expected_seconds, plans))),
        }
        print(
            f"{experiment.name}: {found[experiment.name]['runs']} runs,"
            f" {human_seconds(found[experiment.name]['seconds'])}"
        )
    ESTIMATES.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    os.chdir(ROOT)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("experiments: stopped; the same command goes on from here", file=sys.stderr)
        sys.exit(130)
    except EcrlError as error:
        print(f"experiments: {error.line()}", file=sys.stderr)
        sys.exit(error.exit_code)
