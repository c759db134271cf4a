"""`failures`: real training runs, each under two random failures, the second often during recovery from the first.

A trial: one run of a small model with two to four ranks, by the code path of `ecrl train` under the zygote launcher, to its end; then the verdict
of `verify` against an undisturbed run, the final digests, the exit code, and leftovers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from statistics import median
from typing import Any

from ecrl_cli.config.studies import Failures
from ecrl_cli.studies.frame.gates import mutants_found
from ecrl_cli.studies.frame.result import upper_bound
from ecrl_cli.studies.frame.study import Results, Skip, Study, StudyContext, Trial
from ecrl_cli.studies.mutants.recovery import BUGS
from ecrl_cli.studies.training.failures_generator import FailureRunSpec, generate
from ecrl_cli.studies.training.training_study import (
    BUGS_FOUND,
    FAILED,
    all_valid,
    by,
    is_valid,
    phases_hit,
    phases_struck,
    planted_arm,
    run_arm,
    runs,
    who,
    whom,
)
from ecrl_cli.studies.training.trial import Bench, search

OUTCOMES = ("valid", "hung", "left", "exit", "invalid", "unknown", "differs", "idle")
# Phases that a recorded study must have hit, and how often; and the number of runs, with two failures each, of such a study.
PHASES = ("boundary", "forward", "backward", "optimizer", "capture", "save", "start", "rendezvous", "load", "wall")
HITS, RECORDED = 20, 500
_SETUPS = {"strategy": "write strategy", "mode": "write mode", "layout": "layout", "world_size": "ranks", "model": "model"}
# Failures after which the run resumes from a checkpoint: those that expose a recovery bug.
_FATAL = ("kill",)


def _draw(context: StudyContext) -> Iterator[Trial]:
    for number in range(context.keys.trials):
        key = f"run/{number:04d}"
        setup, entries = generate(context.rng(key), context.keys.strategies, context.keys.kinds)
        yield Trial(key, {"arm": "random", **asdict(setup), "entries": list(entries)})


def _play(bench: Bench, facts: dict[str, Any]) -> tuple[dict[str, Any], str]:
    setup = FailureRunSpec(*(facts[name] for name in ("model", "world_size", "strategy", "mode", "layout")))
    entries = tuple(facts["entries"])
    return asdict(bench.play(setup.keys(entries), setup.reference)), setup.typed(entries)


def _search(context: StudyContext, trial: Trial) -> dict[str, Any]:
    rng = context.rng(trial.key)
    return search(context.scratch / "planted", trial.facts["bug"], lambda: generate(rng, context.keys.strategies, _FATAL))


def _told(found: Iterable[Any]) -> str:
    return ", ".join(f"{what} {n}" for what, n in Counter(found).most_common())


def _notes(results: Results) -> Iterator[str]:
    tried = runs(results)
    if not tried:
        return
    struck, attempts = sum(len(record.found["fired"]) for record in tried), sum(record.found["attempts"] for record in tried)
    fired = [each for record in tried for each in record.found["fired"]]
    took = [record.seconds for record in tried]
    yield f"{struck} failures struck in {len(tried)} runs, which took {attempts} attempts."
    yield f"A run took {median(took):.1f} s in the middle and {max(took):.1f} s at most, with its verdict and what ran beside it."
    yield f"by kind: {_told(kind for kind, _ in fired)}"
    yield f"by phase: {_told(moment for _, moment in fired)}"
    yield f"by who was planned: {_told(who(entry) for record in tried for entry in record.facts['entries'])}"
    for key, label in _SETUPS.items():
        yield f"runs by {label}: {_told(record.facts[key] for record in tried)}"
    yield f"runs by outcome: {_told(record.found['outcome'] for record in tried)}"
    if all(map(is_valid, tried)):
        yield (
            f"0 of {len(tried)} runs under two random failures lost or changed anything: the probability per such run is below "
            f"{upper_bound(len(tried)):.2%} (one-sided exact 95%). Nothing was lost: every run reached its target in the very state of its reference."
        )


STUDY = Study(
    keys=Failures,
    description="Real training runs, each under two random failures, the second often while the first is being recovered from.",
    arms=(run_arm("random", _draw, _play), planted_arm(BUGS, _search)),
    tables=(
        by("strategy", "write strategy", lambda r: [r.facts["strategy"]], OUTCOMES),
        by("mode", "write mode", lambda r: [r.facts["mode"]], OUTCOMES),
        by("ranks", "ranks", lambda r: [f"{r.facts['world_size']}, {r.facts['model']}"], OUTCOMES),
        by("kind", "kind of failure that struck", lambda r: dict.fromkeys(kind for kind, _ in r.found["fired"]), OUTCOMES),
        by("phase", "phase in which it struck", phases_struck, OUTCOMES),
        by("who", "who was struck", whom, OUTCOMES),
        FAILED,
        BUGS_FOUND,
    ),
    gates=(all_valid, phases_hit(PHASES, HITS, RECORDED), mutants_found()),
    notes=_notes,
    skips=lambda context: [Skip("partition", "needs a network namespace per attempt: see ecrl train failure=partition")],
)
