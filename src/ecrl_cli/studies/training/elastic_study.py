"""`elastic`: real training runs whose number of ranks changes two to five times, under random kills.

With fixed replicas every run of a model must end bit for bit like a single rank; without them like the undisturbed run that changes its size at
the same steps. In both, no sample may be missing or repeated. Hash seeds differ between trials.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ecrl_cli.config.studies import Elastic
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.frame.gates import mutants_found
from ecrl_cli.studies.frame.result import upper_bound
from ecrl_cli.studies.frame.study import Record, Results, Study, StudyContext, Trial
from ecrl_cli.studies.mutants.recovery import BUGS, REPLICA_BUGS
from ecrl_cli.studies.training.elastic_generator import ElasticRunSpec, generate
from ecrl_cli.studies.training.failures_study import OUTCOMES
from ecrl_cli.studies.training.training_study import BUGS_FOUND, FAILED, all_valid, by, is_valid, phases_struck, planted_arm, run_arm, runs
from ecrl_cli.studies.training.trial import Bench, search

PLAIN, FIXED = (0,), (4, 8)
REPLICAS = (*PLAIN, *FIXED)
HASH_SEEDS = ("0", "1", "2", "3", "4")


def _draw(context: StudyContext) -> Iterator[Trial]:
    for number in range(context.keys.trials):
        key = f"run/{number:04d}"
        rng = context.rng(key)
        course, entries = generate(rng, context.keys.strategies, REPLICAS)
        facts = {**asdict(course), "sizes": [list(each) for each in course.sizes], "entries": list(entries)}
        yield Trial(key, {"arm": "random", **facts, "hash_seed": rng.choice(HASH_SEEDS)})


def _play(bench: Bench, facts: dict[str, Any]) -> tuple[dict[str, Any], str]:
    sizes = tuple((step, size) for step, size in facts["sizes"])
    course, entries = ElasticRunSpec(facts["model"], facts["strategy"], facts["replicas"], sizes), tuple(facts["entries"])
    found = asdict(bench.play(course.keys(entries), course.reference, facts["hash_seed"]))
    if found["outcome"] == "valid" and found["resized"] < len(sizes) - 1:
        found |= {"outcome": "idle", "why": f"{found['resized']} changes of size, {len(sizes) - 1} were planned"}
    return found, course.typed(entries)


def _search(context: StudyContext, trial: Trial) -> dict[str, Any]:
    """Searches for a replica bug with replicas, for any other without, where RNG is not per rank."""
    rng, replicas = context.rng(trial.key), FIXED if trial.facts["bug"] in REPLICA_BUGS else PLAIN
    return search(context.scratch / "planted", trial.facts["bug"], lambda: generate(rng, context.keys.strategies, replicas))


def _mode(record: Record) -> str:
    replicas = record.facts["replicas"]
    return f"{replicas} replicas" if replicas else "plain"


def _alike(results: Results) -> Iterator[Gate]:
    """Compared here, not by `verify`: one digest per model and number of replicas, whatever the sizes."""
    digests: dict[tuple[str, int], set[str]] = {}
    for record in runs(results):
        if record.facts["replicas"]:
            digests.setdefault((record.facts["model"], record.facts["replicas"]), set()).add(record.found["digests"])
    several = [f"{model} with {replicas} replicas: {len(found)}" for (model, replicas), found in digests.items() if len(found) > 1]
    count = sum(bool(record.facts["replicas"]) for record in runs(results))
    message = f"{count} runs with replicas ended in {sum(map(len, digests.values()))} states, of {len(digests)} models and numbers of replicas"
    if digests:
        yield Gate("alike", not several, message + (f"; not {', '.join(several)}" if several else ""))


def _notes(results: Results) -> Iterator[str]:
    tried = runs(results)
    if tried and all(map(is_valid, tried)):
        changes = sum(record.found["resized"] for record in tried)
        yield (
            f"The number of ranks changed {changes} times in {len(tried)} runs. 0 runs lost or repeated a sample or ended in another state: rarer "
            f"than {upper_bound(len(tried)):.2%} of such runs (one-sided exact 95%)."
        )


STUDY = Study(
    keys=Elastic,
    description="Real training runs over random world sizes and under random kills, with fixed replicas and without.",
    arms=(run_arm("random", _draw, _play), planted_arm((*BUGS, *REPLICA_BUGS), _search)),
    tables=(
        by("mode", "mode", lambda r: [_mode(r)], OUTCOMES),
        by("phases", "phases of a number of ranks", lambda r: [str(len(r.facts["sizes"]))], OUTCOMES),
        by("sizes", "number of ranks that took part", lambda r: sorted({str(size) for _, size in r.facts["sizes"]}), OUTCOMES),
        by("strategy", "write strategy", lambda r: [r.facts["strategy"]], OUTCOMES),
        by("model", "model", lambda r: [r.facts["model"]], OUTCOMES),
        by("hash_seed", "PYTHONHASHSEED", lambda r: [r.facts["hash_seed"]], OUTCOMES),
        by("phase", "phase in which it struck", phases_struck, OUTCOMES),
        FAILED,
        BUGS_FOUND,
    ),
    gates=(all_valid, _alike, mutants_found()),
    notes=_notes,
)
