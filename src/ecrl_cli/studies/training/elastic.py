"""`elastic`: real training runs of two to five phases with different numbers of ranks, under kills
at random moments.

With fixed replicas every run of a model must end bit for bit like a single rank; without them like
the undisturbed run that changes its size at the same steps. In both, no sample may be missing or
repeated. Hash seeds differ between trials.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ecrl_cli.config.build import build
from ecrl_cli.config.elastic import ranks_at
from ecrl_cli.config.fault_spec import Entry
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.studies import Elastic
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.frame.gates import mutants_found
from ecrl_cli.studies.frame.result import upper_bound
from ecrl_cli.studies.frame.study import (
    Record,
    Study,
    StudyContext,
    Trial,
    TrialResults,
    planted_arm,
)
from ecrl_cli.studies.mutants.recovery import BUGS, REPLICA_BUGS
from ecrl_cli.studies.training import failures
from ecrl_cli.studies.training.failures import BATCHES, OUTCOMES, possible
from ecrl_cli.studies.training.training_study import (
    BUGS_FOUND,
    FAILED,
    Bench,
    all_valid,
    by,
    is_valid,
    on_digits,
    phases_of,
    run_arm,
    runs,
    search,
    typed,
)

TARGET, EVERY = 18, 4  # steps, and steps between checkpoints
SIZES = (1, 2, 3, 4)
MODELS = failures.MODELS | {
    "small_cnn": ({"name": "small_cnn", "width": 4, "dropout": 0.2}, {"name": "sgd", "lr": 0.05})
}
_MOMENTS = ("boundary", "forward", "backward", "optimizer", "capture", "load")
_DRAWS = 200


@dataclass(frozen=True)
class ElasticRunSpec:
    """`replicas` 0: plain data parallelism. `sizes`: (first step, number of ranks), the first from
    step 0.
    """

    model: str
    strategy: str
    replicas: int
    sizes: tuple[tuple[int, int], ...]

    def keys(self, entries: tuple[str, ...] = ()) -> dict[str, Any]:
        model, optimizer = MODELS[self.model]
        return on_digits(
            entries,
            target_steps=TARGET,
            global_batch=BATCHES[self.model],
            world_size=self.sizes[0][1],
            model=dict(model),
            optimizer=dict(optimizer),
            checkpoint={"strategy": self.strategy, "every": EVERY},
            elastic={"replicas": self.replicas, "schedule": dict(self.sizes[1:])},
            supervision={"launcher": "zygote"},
        )

    @property
    def reference(self) -> dict[str, Any]:
        """With replicas, a single rank; without, the same sizes at the same steps, since they
        affect the result there.
        """
        sizes = ((0, 1),) if self.replicas else self.sizes
        return ElasticRunSpec(self.model, "blocking", self.replicas, sizes).keys()


def generate(
    rng: random.Random, strategies: tuple[str, ...], replicas: tuple[int, ...]
) -> tuple[ElasticRunSpec, tuple[str, ...]]:
    """A run and one to three kills of existing ranks."""
    steps = sorted(rng.sample(range(2, TARGET - 1), rng.randint(1, 4)))
    sizes = [(0, rng.choice(SIZES))]
    for step in steps:
        sizes.append((step, rng.choice([size for size in SIZES if size != sizes[-1][1]])))
    spec = ElasticRunSpec(
        rng.choice(tuple(MODELS)), rng.choice(strategies), rng.choice(replicas), tuple(sizes)
    )
    undisturbed, entries = build(spec.keys()), tuple[str, ...]()
    wanted = rng.randint(1, 3)
    for _ in range(_DRAWS):
        if len(entries) == wanted:
            break
        candidate = (*entries, str(_kill(rng, undisturbed)))
        if possible(undisturbed, candidate):
            entries = candidate
    return spec, entries


def _kill(rng: random.Random, config: RunConfig) -> Entry:
    """A kill of an existing rank. A kill during loading is planned for the attempt after a change
    of size, or an earlier one.
    """
    moment = rng.choice(_MOMENTS)
    step = (
        rng.choice([0, *config.elastic.schedule])
        if moment == "load"
        else rng.randint(1, TARGET - 2)
    )
    who = (rng.randrange(ranks_at(config, step) if step else config.world_size),)
    share = round(rng.random(), 2) if moment in ("forward", "backward", "optimizer") else None
    return Entry("kill", step, moment, share, who)


PLAIN, FIXED = (0,), (4, 8)
REPLICAS = (*PLAIN, *FIXED)
HASH_SEEDS = ("0", "1", "2", "3", "4")


def _draw(context: StudyContext) -> Iterator[Trial]:
    for number in range(context.keys.trials):
        key = f"run/{number:04d}"
        rng = context.rng(key)
        spec, entries = generate(rng, context.keys.strategies, REPLICAS)
        facts = {
            **asdict(spec),
            "sizes": [list(each) for each in spec.sizes],
            "entries": list(entries),
        }
        yield Trial(key, {"arm": "random", **facts, "hash_seed": rng.choice(HASH_SEEDS)})


def _play(bench: Bench, facts: dict[str, Any]) -> tuple[dict[str, Any], str]:
    sizes = tuple((step, size) for step, size in facts["sizes"])
    spec, entries = (
        ElasticRunSpec(facts["model"], facts["strategy"], facts["replicas"], sizes),
        tuple(facts["entries"]),
    )
    found = asdict(bench.play(spec.keys(entries), spec.reference, facts["hash_seed"]))
    if found["outcome"] == "valid" and found["resized"] < len(sizes) - 1:
        found |= {
            "outcome": "idle",
            "why": f"{found['resized']} changes of size, {len(sizes) - 1} were planned",
        }
    return found, typed(spec.keys(entries))


def _search(context: StudyContext, trial: Trial) -> dict[str, Any]:
    """Searches for a replica bug with replicas, for any other without, where RNG is not per
    rank.
    """
    rng, replicas = context.rng(trial.key), FIXED if trial.facts["bug"] in REPLICA_BUGS else PLAIN
    return search(
        context.scratch / "planted",
        trial.facts["bug"],
        lambda: generate(rng, context.keys.strategies, replicas),
    )


def _mode(record: Record) -> str:
    replicas = record.facts["replicas"]
    return f"{replicas} replicas" if replicas else "plain"


def _alike(results: TrialResults) -> Iterator[Gate]:
    """Compared here, not by `verify`: one digest per model and number of replicas, whatever the
    sizes.
    """
    digests: dict[tuple[str, int], set[str]] = {}
    for record in runs(results):
        if record.facts["replicas"]:
            digests.setdefault((record.facts["model"], record.facts["replicas"]), set()).add(
                record.found["digests"]
            )
    several = [
        f"{model} with {replicas} replicas: {len(found)}"
        for (model, replicas), found in digests.items()
        if len(found) > 1
    ]
    count = sum(bool(record.facts["replicas"]) for record in runs(results))
    message = (
        f"{count} runs with replicas ended in {sum(map(len, digests.values()))} states, of"
        f" {len(digests)} models and numbers of replicas"
    )
    if digests:
        yield Gate(
            "alike", not several, message + (f"; not {', '.join(several)}" if several else "")
        )


def _notes(results: TrialResults) -> Iterator[str]:
    tried = runs(results)
    if tried and all(map(is_valid, tried)):
        changes = sum(record.found["resized"] for record in tried)
        yield (
            f"The number of ranks changed {changes} times in {len(tried)} runs. 0 runs lost or"
            " repeated a sample or ended in another state: rarer than"
            f" {upper_bound(len(tried)):.2%} of such runs (one-sided exact 95%)."
        )


STUDY = Study(
    keys=Elastic,
    description=(
        "Real training runs over random world sizes and under random kills, with fixed replicas and"
        " without."
    ),
    arms=(run_arm("random", _draw, _play), planted_arm((*BUGS, *REPLICA_BUGS), _search)),
    tables=(
        by("mode", "mode", lambda r: [_mode(r)], OUTCOMES),
        by(
            "phases",
            "phases of a number of ranks",
            lambda r: [str(len(r.facts["sizes"]))],
            OUTCOMES,
        ),
        by(
            "sizes",
            "number of ranks that took part",
            lambda r: sorted({str(size) for _, size in r.facts["sizes"]}),
            OUTCOMES,
        ),
        by("strategy", "write strategy", lambda r: [r.facts["strategy"]], OUTCOMES),
        by("model", "model", lambda r: [r.facts["model"]], OUTCOMES),
        by("hash_seed", "PYTHONHASHSEED", lambda r: [r.facts["hash_seed"]], OUTCOMES),
        by("phase", "phase in which it was injected", phases_of, OUTCOMES),
        FAILED,
        BUGS_FOUND,
    ),
    gates=(all_valid, _alike, mutants_found()),
    notes=_notes,
)
