"""Results of the model arm: the matrix, the planted bugs, and the gates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ecrl_cli.config.schema import WRITE_MODES
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.frame.gates import mutants_gate
from ecrl_cli.studies.frame.result import Figure, ResultColumn, Series
from ecrl_cli.studies.frame.study import Record, TrialResults
from ecrl_cli.studies.frame.tables import (
    Cells,
    Group,
    TableSpec,
    counts,
    fact,
    found,
    sums,
    total,
    value,
    yes,
)
from ecrl_cli.studies.power_loss.model_disk import MODELS
from ecrl_cli.studies.power_loss.model_trial import LOST, NEVER, OUTCOMES, broken

ARMS = ("ours", "published", "planted")
DIRSYNC_STATES, ALL_STATES = 50_000, 500_000  # fewer distinct states prove too little


def outcomes(records: Iterable[Record]) -> Counter[str]:
    """How many states of the records have each outcome."""
    return sum((Counter(record.found["outcomes"]) for record in records), Counter())


def _count(records: Iterable[Record], names: Sequence[str]) -> int:
    counts = outcomes(records)
    return sum(counts[name] for name in names)


def _of(records: Iterable[Record], **facts: str) -> list[Record]:
    """The records with these facts."""
    return [
        record
        for record in records
        if all(record.facts[name] == wanted for name, wanted in facts.items())
    ]


def _second(group: Group) -> dict[str, int | None]:
    """Results of recovery after another loss during recovery, where that was tried."""
    tried = [
        Counter(record.found["second"]["outcomes"]) for record in group if "second" in record.found
    ]
    counts = sum(tried, Counter[str]())
    return (
        {"second": counts.total() - counts["worse"], "worse": counts["worse"]}
        if tried
        else {"second": None, "worse": None}
    )


def _protocol(record: Record) -> str:
    mode = str(record.facts["mode"])
    return mode if record.facts["arm"] == "ours" else f"published {mode}"


_COUNTED = (
    total("calls", "calls"),
    total("reachable", "states reachable, at least", kind="number"),
    total("built", "states built"),
    total("distinct", "distinct"),
    total("exhausted", "moments tried in full"),
    total("moments", "of moments"),
    counts({**{name: name for name in OUTCOMES}, "half": "half with a whole commit"}, outcomes),
)
_MATRIX = TableSpec(
    "model",
    "Every legal state after a power loss",
    ("ours", "published"),
    by=(value("protocol", "protocol and mode", _protocol), fact("model", "model")),
    columns=(
        *_COUNTED,
        Cells(
            (
                ResultColumn("second", "states after a loss during recovery", "count"),
                ResultColumn("worse", "worse than before it", "count"),
            ),
            _second,
        ),
    ),
    note=(
        "A state is what a power loss after some call may leave; a distinct one is a tree of files,"
        " by content, with what had been begun and acknowledged, counted once per cell (workload,"
        " layout, mode, model): another cell may have it too. P: the process dies. O: names survive"
        " in order. X: what POSIX promises and no more. reachable counts every choice of the model,"
        " also where only a sample was tried. new: the step on its way, or the newest acknowledged,"
        " was recovered; previous: the newest acknowledged, while a newer one was on its way."
    ),
    sort=lambda r: (
        r.facts["arm"] != "ours",
        WRITE_MODES.index(r.facts["mode"]),
        MODELS.index(r.facts["model"]),
    ),
)
TABLES = (
    _MATRIX,
    TableSpec(
        "model_workloads",
        "The strictest model (X) by workload",
        ("ours",),
        columns=(
            fact("workload", "workload"),
            fact("layout", "layout"),
            fact("mode", "write mode"),
            *_COUNTED,
        ),
        where=lambda r: r.facts["model"] == "X",
    ),
    TableSpec(
        "model_planted",
        "Bugs planted in the protocol, and the first state that gives each away",
        ("planted",),
        columns=(
            fact("name", "planted bug"),
            fact("step", "step of the protocol that it breaks"),
            yes("found", "found", lambda r: r.found["found"]),
            found("model", "model"),
            found("outcome", "outcome"),
            found("state", "by this state"),
            found("tried", "states tried", "count"),
        ),
    ),
)


def figures(results: TrialResults) -> Iterator[Figure]:
    rows = [row for row in _MATRIX(results).rows if row["model"] == "X"]
    seen = [name for name in OUTCOMES if any(row[name] for row in rows)]
    series = tuple(
        Series(name, tuple(row[name] / row["distinct"] for row in rows)) for name in seen
    )
    title = "What recovery finds after a power loss (model X)"
    of_states, names = "share of distinct states", tuple(str(row["protocol"]) for row in rows)
    yield Figure("model", title, "stacked", "protocol and mode", of_states, series, names)


def classes(results: TrialResults) -> dict[str, set[str]]:
    """The outcomes of each write mode in the model."""
    found: dict[str, set[str]] = {}
    for record in results.of("ours"):
        found.setdefault(record.facts["mode"], set()).update(record.found["outcomes"])
    return found


def gates(results: TrialResults) -> Iterator[Gate]:
    if results.of(*ARMS):
        ours, modes = results.of("ours"), results.keys.modes
        yield from (*_never(ours), *_kept(ours, modes), *_sees(results, modes), *_again(ours))
    if bugs := results.of("planted"):
        yield from mutants_gate(
            {record.facts["name"]: bool(record.found["found"]) for record in bugs}, "model planted"
        )


def _never(ours: Sequence[Record]) -> Iterator[Gate]:
    """Nothing silently wrong, untyped or hung in any mode, over enough states; no whole commit
    record on an incomplete checkpoint.
    """
    bad, tried = _count(ours, NEVER), sums(ours, "distinct")["distinct"]
    wrong = (
        f"{bad} of {tried} states (distinct within their cells) silently wrong, untyped or hung (0"
        f" in at least {ALL_STATES} is asked)"
    )
    yield Gate("model never wrong", bad == 0 and tried >= ALL_STATES, wrong + _first(ours, bad))
    halves = _count(ours, ["half"])
    yield Gate(
        "model commits",
        halves == 0,
        f"{halves} states with a whole commit over half a checkpoint" + _first(ours, halves),
    )


def _kept(ours: Sequence[Record], modes: Sequence[str]) -> Iterator[Gate]:
    """The promise of each mode: what it keeps."""
    process = _of(ours, model="P")
    lost = _count(process, LOST)
    message = f"{lost} states lose something when only the process dies"
    yield Gate("model process crash", lost == 0 and bool(process), message + _first(process, lost))
    if "atomic_nodirsync" in modes:
        ordered = _of(ours, mode="atomic_nodirsync", model="O")
        deepest = max((record.found.get("deepest", 0) for record in ordered), default=0)
        message = (
            f"atomic_nodirsync loses {deepest} acknowledged steps at most where names are lost in"
            " order (the unsynced tail: 1)"
        )
        yield Gate("model tail", deepest <= 1 and bool(ordered), message)
    if "atomic_dirsync" in modes:
        synced = _of(ours, mode="atomic_dirsync")
        bad = sum(
            count
            for record in synced
            for name, count in record.found["outcomes"].items()
            if broken("atomic_dirsync", record.facts["model"], name)
        )
        tried = sums(synced, "distinct")["distinct"]
        message = (
            f"{bad} of {tried} states (distinct within their cells) break the promise (0 in at"
            f" least {DIRSYNC_STATES} is asked)"
        )
        yield Gate(
            "model atomic_dirsync",
            bad == 0 and tried >= DIRSYNC_STATES,
            message + _first(synced, bad),
        )


def _first(records: Sequence[Record], bad: int) -> str:
    """The first example, if there are `bad` states."""
    return next(
        (
            f"; {record.key}: {example}"
            for record in records
            for example in record.found["examples"]
            if bad
        ),
        "",
    )


def _sees(results: TrialResults, modes: Sequence[str]) -> Iterator[Gate]:
    """Under model X the modes without syncs and the published protocol must lose acknowledged
    checkpoints; otherwise the model is blind.
    """
    for arm, mode in (
        ("ours", "unsafe"),
        ("ours", "atomic_nodirsync"),
        ("published", "atomic_dirsync"),
    ):
        if mode in modes and (arm == "ours" or results.of(arm)):
            name = mode if arm == "ours" else f"published {mode}"
            lost = _count(_of(results.of(arm), mode=mode, model="X"), LOST)
            yield Gate(
                f"model sees {name}",
                lost > 0,
                f"{name} loses acknowledged checkpoints in {lost} states under X",
            )


def _again(ours: Sequence[Record]) -> Iterator[Gate]:
    """Interrupted recovery, and recovery in real folders."""
    seconds = [(record.key, record.found["second"]) for record in ours]
    count, run = (
        sum(each["outcomes"].get("worse", 0) for _, each in seconds),
        sum(each["run"] for _, each in seconds),
    )
    worse = next(
        (f"; {key}: {example}" for key, each in seconds for example in each["examples"]), ""
    )
    yield Gate(
        "model recovery",
        count == 0 and run > 0,
        f"{count} states worse after recovery itself was cut off, from {run} states{worse}",
    )
    folders = [record.found["folders"] for record in ours if "folders" in record.found]
    rebuilt, differing = (
        sum(each["rebuilt"] for each in folders),
        sum(each["differing"] for each in folders),
    )
    other = next((f"; {example}" for each in folders for example in each["different"]), "")
    same = (
        f"{rebuilt - differing} of {rebuilt} states rebuilt in real folders are recovered from as"
        f" in the model{other}"
    )
    yield Gate("model folders", differing == 0 and rebuilt > 0, same)


def notes(results: TrialResults) -> Iterator[str]:
    ours = results.of("ours")
    if not ours:
        return
    for mode in dict.fromkeys(record.facts["mode"] for record in ours):
        strict = _of(ours, mode=mode, model="X")
        tried = sums(strict, "moments", "exhausted", "distinct")
        whole = tried["exhausted"] == tried["moments"]
        proof = (
            "A proof over the model, not a probability"
            if whole
            else "Enumerated where that was possible, else a seeded sample of states"
        )
        yield (
            f"{mode}: {'every state' if whole else 'the states'} reachable under X for these"
            f" workloads, exhaustively for {tried['exhausted']} of {tried['moments']} crash points:"
            f" {_count(strict, LOST)} of {tried['distinct']} distinct states lose what was"
            f" acknowledged. {proof}: no interval."
        )
    looked = sums(ours, "examined", "recoveries")
    yield (
        f"The real integrity check examined {looked['examined']} different checkpoints and the real"
        f" recovery chose from {looked['recoveries']} different sets of them: both are functions of"
        " these, so a state that differs only elsewhere was not recovered from again."
    )
    if bugs := results.of("planted"):
        yield (
            f"Planted bugs: {sums(bugs, 'found')['found']} of {len(bugs)} found. A zero above is"
            " worth what this shows."
        )
    yield (
        "Not covered: drives that lie about their cache, damage to bytes at rest, and renames"
        " between folders (the protocol has none)."
    )
