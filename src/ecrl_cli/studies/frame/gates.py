"""Gates of a study: each says how much was tried, and names the trials that miss it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.frame.study import Record, TrialResults

GateRule = Callable[[TrialResults], Iterable[Gate]]
Test = Callable[[Record], object]


def all_of(name: str, arms: str | Sequence[str], good: Test, what: str) -> GateRule:
    """Passes if there are records of `arms` and each is `good`."""
    return lambda results: (all_good(name, _records(results, arms), good, what),)


def none_of(
    name: str, arms: str | Sequence[str], bad: Test, what: str, where: Test = lambda record: True
) -> GateRule:
    """Passes if there are records of `arms` that pass `where`, and none is `bad`."""
    return lambda results: (
        none_bad(name, [record for record in _records(results, arms) if where(record)], bad, what),
    )


# For arms with a limit: no trial timed out.
OVER = all_of(
    "over", (), lambda record: not record.found["overdue"], "trials came to an end by themselves"
)


def by_design(results: TrialResults, what: str, arm: str = "case") -> str:
    """The share of good trials, in words, without a bound on a probability: the cells are designed,
    not random draws.
    """
    records = results.of(arm)
    return (
        f"{sum(bool(r.found['good']) for r in records)} of {len(records)} {what}: cells chosen by"
        " design, so no probability follows."
    )


def mutants_found(bug: str = "bug", found: str = "found") -> GateRule:
    """Passes if each bug of the arm `planted`, and at least one, was found. No gate if none was
    planned.
    """

    def gate(results: TrialResults) -> Iterable[Gate]:
        planted = getattr(results.keys, "planted", True) or results.of("planted")
        return (
            mutants_gate(
                {record.facts[bug]: bool(record.found[found]) for record in results.of("planted")}
            )
            if planted
            else ()
        )

    return gate


def mutants_gate(found: Mapping[str, bool], gate: str = "planted") -> tuple[Gate, ...]:
    """The gate on planted bugs: whether each, by name, was found, and there was one."""
    missed = [name for name, seen in found.items() if not seen]
    message = f"planted {len(found) - len(missed)}/{len(found)} found" + (
        f"; not {', '.join(missed)}" if missed else ""
    )
    return (Gate(gate, bool(found) and not missed, message),)


def all_good(name: str, records: Sequence[Record], good: Test, what: str) -> Gate:
    """`all_of` over these records."""
    bad = [record.key for record in records if not good(record)]
    return Gate(
        name,
        bool(records) and not bad,
        f"{len(records) - len(bad)} of {len(records)} {what}" + (f"; not {bad[0]}" if bad else ""),
    )


def none_bad(name: str, records: Sequence[Record], bad: Test, what: str) -> Gate:
    """`none_of` over these records."""
    wrong = [record for record in records if bad(record)]
    return Gate(
        name, bool(records) and not wrong, f"{len(wrong)} of {len(records)} {what}{named(wrong)}"
    )


def nothing(name: str, wrong: Sequence[str], kept: str) -> Gate:
    """Passed, with the message `kept`, if nothing is `wrong`; else it names the first three."""
    return Gate(
        name,
        not wrong,
        "; ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "") or kept,
    )


def named(records: Sequence[Record]) -> str:
    """The first keys, to follow a count; empty if there are none."""
    return (
        "".join(
            (
                ": ",
                ", ".join(record.key for record in records[:3]),
                ", ..." if len(records) > 3 else "",
            )
        )
        if records
        else ""
    )


def _records(results: TrialResults, arms: str | Sequence[str]) -> list[Record]:
    return results.of(*((arms,) if isinstance(arms, str) else arms))
