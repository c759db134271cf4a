"""`elastic`: real training runs whose number of ranks changes two to five times, under random kills.

With fixed replicas every run of a model must end bit for bit as one rank that does it all; without them as the run that changes its size at
the same steps undisturbed, and in both no sample may be missing or come twice. Hash seeds differ from trial to trial.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from ecrl_cli.studies.frame.result import Findings
from ecrl_cli.studies.frame.study import PreparedStudy, Record, StudyContext, Trial
from ecrl_cli.studies.mutants.recovery import BUGS, REPLICA_BUGS
from ecrl_cli.studies.training.elastic_generator import ElasticRunSpec, generate
from ecrl_cli.studies.training.elastic_tables import findings
from ecrl_cli.studies.training.training_study import Campaign
from ecrl_cli.studies.training.trial import Bench, search

PLAIN, FIXED = (0,), (4, 8)
REPLICAS = (*PLAIN, *FIXED)
HASH_SEEDS = ("0", "1", "2", "3", "4")


def make(setting: StudyContext) -> PreparedStudy:
    return _Elastic(setting)


class _Elastic(Campaign):
    bugs = (*BUGS, *REPLICA_BUGS)

    def play(self, bench: Bench, facts: dict[str, Any]) -> tuple[dict[str, Any], str]:
        sizes = tuple((step, size) for step, size in facts["sizes"])
        course, entries = ElasticRunSpec(facts["model"], facts["strategy"], facts["replicas"], sizes), tuple(facts["entries"])
        found = asdict(bench.play(course.keys(entries), course.reference, facts["hash_seed"]))
        if found["outcome"] == "valid" and found["resized"] < len(sizes) - 1:
            found |= {"outcome": "idle", "why": f"{found['resized']} changes of size, {len(sizes) - 1} were planned"}
        return found, course.typed(entries)

    def findings(self, records: Sequence[Record]) -> Findings:
        return findings(records)

    def drawn(self) -> Iterator[Trial]:
        for number in range(self._config.trials):
            key = f"run/{number:04d}"
            rng = self._setting.rng(key)
            course, entries = generate(rng, self._config.strategies, REPLICAS)
            facts = {**asdict(course), "sizes": [list(each) for each in course.sizes], "entries": list(entries)}
            yield Trial(key, {"arm": "random", **facts, "hash_seed": rng.choice(HASH_SEEDS)})

    def search(self, trial: Trial) -> dict[str, Any]:
        """A bug of the replicas shows with them, any other without: with them a rank's generators are nobody's."""
        rng, replicas = self._setting.rng(trial.key), FIXED if trial.facts["bug"] in REPLICA_BUGS else PLAIN
        return search(self._setting.scratch / "planted", trial.facts["bug"], lambda: generate(rng, self._config.strategies, replicas))
