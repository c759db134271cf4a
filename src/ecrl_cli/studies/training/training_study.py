"""What the studies over real training runs share: `failures`, `elastic` and `live-recovery` differ in what they draw and what they check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.frame.gates import GateRule
from ecrl_cli.studies.frame.replay_command import command
from ecrl_cli.studies.frame.result import Column, Table
from ecrl_cli.studies.frame.study import Arm, Record, Results, StudyContext, Trial, planted
from ecrl_cli.studies.frame.tables import TableSpec, fact, found, mutants_table, value, yes
from ecrl_cli.studies.training.trial import Bench

# The outcome of a run, and the `ecrl train` command that runs it alone.
Play = Callable[[Bench, dict[str, Any]], tuple[dict[str, Any], str]]


def _bench(context: StudyContext) -> Bench:
    return Bench(context.scratch / "bench")


def run_arm(name: str, draw: Callable[[StudyContext], Iterable[Trial]], play: Play) -> Arm:
    """The trials from `draw`, one training run each; the record of an invalid one has the commands that rerun it."""

    def run(context: StudyContext, trial: Trial) -> dict[str, Any]:
        result, alone = play(context.shared(_bench), trial.facts)
        return result if result["outcome"] == "valid" else result | {"replay": command(context.config, trial.key), "alone": alone}

    return Arm(name, draw, run)


def planted_arm(bugs: Iterable[str], search: Callable[[StudyContext, Trial], dict[str, Any]]) -> Arm:
    """One trial per bug: `search` runs with it until one run fails."""
    return Arm(
        "planted",
        lambda context: [Trial(f"planted/{bug.replace(' ', '_')}", {"arm": "planted", "bug": bug}) for bug in bugs],
        search,
        planted,
    )


def runs(results: Results) -> list[Record]:
    """All runs without a planted bug, in plan order."""
    return [record for record in results.records if record.facts["arm"] != "planted"]


def is_valid(record: Record) -> bool:
    return bool(record.found["outcome"] == "valid")


def phases_struck(record: Record) -> list[str]:
    """Phases in which a failure hit the run, each once."""
    return list(dict.fromkeys(moment for _, moment in record.found["fired"]))


def who(entry: str) -> str:
    """The victims of a plan entry, in words."""
    ranks = entry.partition(":")[2].partition("*")[0].partition("%")[0]
    if not ranks:
        return "what its kind strikes"
    return "all ranks" if ranks == "all" else "two ranks" if "+" in ranks else "rank 0" if ranks == "0" else "another rank"


def whom(record: Record) -> list[str]:
    """Victims, each once."""
    return list(dict.fromkeys(map(who, record.facts["entries"])))


def by(name: str, label: str, labels: Callable[[Record], Iterable[str]], outcomes: Sequence[str]) -> Callable[[Results], Table]:
    """Outcomes by the labels from `labels`; a run may count under several."""

    def table(results: Results) -> Table:
        groups: dict[str, list[Record]] = {}
        for record in runs(results):
            for each in labels(record):
                groups.setdefault(each, []).append(record)
        rows = tuple({name: each, "n": len(group), **_counted(group, outcomes)} for each, group in sorted(groups.items()))
        columns = (Column(name, label), Column("n", "runs", "count"), *(Column(outcome, outcome, "count") for outcome in outcomes))
        return Table(f"by_{name}", f"Runs by {label}", columns, rows)

    return table


def _counted(group: Sequence[Record], outcomes: Sequence[str]) -> dict[str, int]:
    counted = Counter(record.found["outcome"] for record in group)
    return {outcome: counted[outcome] for outcome in outcomes}


FAILED = TableSpec(
    "failed",
    "Runs that did not come out valid",
    columns=(
        value("trial", "trial", lambda r: r.key),
        found("outcome", "outcome"),
        found("why", "why"),
        found("replay", "again"),
        found("alone", "the run alone"),
    ),
    where=lambda r: r.facts["arm"] != "planted" and not is_valid(r),
)
BUGS_FOUND = mutants_table(
    (
        fact("bug", "a recovery with"),
        yes("answer", "answer", lambda r: r.found["found"], ("found", "NOT FOUND")),
        found("runs", "runs until then", "count"),
        found("by", "what showed it"),
    ),
    "Is the study blind? Bugs planted into the recovery",
)


def all_valid(results: Results) -> Iterator[Gate]:
    """Every run is valid; otherwise names the first that is not, with the command that reruns it."""
    tried = runs(results)
    bad, first = [record for record in tried if not is_valid(record)], ""
    if bad:
        wrong = bad[0].found
        first = f"; the first: {bad[0].key}: {wrong['outcome']}: {wrong['why']}: {wrong['replay']} (the run alone: {wrong['alone']})"
    yield Gate("valid", bool(tried) and not bad, f"{len(tried) - len(bad)} of {len(tried)} runs ended valid, alike and clean{first}")


def phases_hit(phases: Sequence[str], times: int, trials: int) -> GateRule:
    """A study of at least so many `trials` must have hit each of `phases` in so many runs."""

    def gate(results: Results) -> Iterator[Gate]:
        if results.keys.trials >= trials:
            hit = Counter(phase for record in runs(results) for phase in phases_struck(record))
            rare = [phase for phase in phases if hit[phase] < times]
            yield Gate("phases", not rare, f"each phase hit in at least {times} runs" + (f"; not {', '.join(rare)}" if rare else ""))

    return gate
