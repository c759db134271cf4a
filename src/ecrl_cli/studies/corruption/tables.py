"""Results of the corruption study: its tables, figure, gates and notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ecrl_cli.checkpoint.format.names import LATEST, LAYERS
from ecrl_cli.errors import plural
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.corruption.byte_faults import PUBLISHED_FAULTS
from ecrl_cli.studies.corruption.in_memory import summed
from ecrl_cli.studies.corruption.mutants import BACKED, MUTANTS
from ecrl_cli.studies.corruption.published import CONTROL, MECHANISMS, NOOP
from ecrl_cli.studies.corruption.structural import row_of
from ecrl_cli.studies.frame.gates import mutants_gate, nothing
from ecrl_cli.studies.frame.published import published
from ecrl_cli.studies.frame.result import (
    PROPORTION_COLUMNS,
    Figure,
    ResultColumn,
    ResultTable,
    shares_series,
    upper_bound,
)
from ecrl_cli.studies.frame.result import proportion as proportion_of
from ecrl_cli.studies.frame.study import Record, Trial, TrialResults
from ecrl_cli.studies.frame.tables import (
    Cells,
    Group,
    TableSpec,
    cell,
    count,
    fact,
    found,
    proportion,
    share,
    size,
    sums,
    value,
)

LEAST_EXHAUSTIVE = 30_000
_FEW = 10  # injections of one kind; with fewer, all may have no effect
# by fault: detected, then by load error, content digest, file SHA-256
PUBLISHED = published("corruption")["detected"]
PUBLISHED_TRIALS = published("corruption")["trials"]
_EFFECTIVE = "effective (of no fault: all)"


def _detected(record: Record) -> bool:
    return bool(record.found["outcome"] == "detected")


def _unchanged(record: Record) -> bool:
    return not record.found["changed"]


def _tried(group: Group) -> list[Record]:
    """Trials of a fault that changed something. A trial of the control has no injection; it counts
    as detected if rejected.
    """
    return [r for r in group if r.found["changed"] or r.facts["fault"] in (CONTROL, NOOP)]


def _injected(test: Callable[[Group], int]) -> Callable[[Group], int]:
    return lambda group: 0 if group[0].facts["fault"] == CONTROL else test(group)


def _seen_by(mechanism: str) -> Callable[[Group], int]:
    return lambda group: sum(mechanism in r.found["mechanisms"] for r in _tried(group))


def _printed(place: int) -> Callable[[Group], int | None]:
    return lambda group: (
        PUBLISHED[group[0].facts["fault"]][place] if group[0].facts["fault"] in PUBLISHED else None
    )


_LAYERS = tuple(ResultColumn(layer, f"first seen by {layer}", "count") for layer in LAYERS)


def _first_seen(group: Group) -> dict[str, int]:
    times = Counter(r.found["layer"] for r in group)
    return {layer: times[layer] for layer in LAYERS}


_DETECTION = TableSpec(
    "detection",
    "Detection of corruption by fault and mechanism",
    ("published",),
    by=(fact("fault", "fault"),),
    columns=(
        cell("injected", "injected", "count", _injected(len)),
        cell(
            "noops",
            "changed nothing",
            "count",
            _injected(lambda group: sum(map(_unchanged, group))),
        ),
        share(
            lambda group: sum(map(_detected, _tried(group))),
            lambda group: len(_tried(group)),
            "detected",
            _EFFECTIVE,
        ),
        *(cell(name, f"seen by {name}", "count", _seen_by(name)) for name in MECHANISMS),
        cell(
            "twice",
            "seen by two or more",
            "count",
            lambda group: sum(len(r.found["mechanisms"]) > 1 for r in _tried(group)),
        ),
        cell("published_k", "published detected", "count", _printed(0)),
        cell(
            "published_n",
            "published trials",
            "count",
            lambda group: PUBLISHED_TRIALS if group[0].facts["fault"] in PUBLISHED else None,
        ),
        *(
            cell(f"published_{name}", f"published {name}", "count", _printed(1 + n))
            for n, name in enumerate(MECHANISMS)
        ),
    ),
    note=(
        "A file is drawn first, each as likely, then a place in it: MANIFEST is hit as often as the"
        " model. load: JSON, schema and headers, without any hash; digest: tensor by tensor, where"
        " the file loads; sha: of the file, where the record that names it loads. Each on its own."
    ),
)


def _sum(group: Group) -> dict[str, Any]:
    return summed(r.found for r in group)


def _sliced(name: str, title: str, label: Callable[[Record], str], *, intervals: bool) -> TableSpec:
    """Sums of the slices of the arm `name` by `label`; enumerated cases have no interval."""
    columns = (
        ResultColumn("injected", "injected", "count"),
        ResultColumn("noops", "changed nothing", "count"),
        ResultColumn("k", "detected", "count"),
        ResultColumn("n", _EFFECTIVE, "count"),
        *(PROPORTION_COLUMNS[2:] if intervals else ()),
        *(ResultColumn("untyped", "exceptions", "count"), *_LAYERS),
    )

    def read(group: Group) -> dict[str, Any]:
        sums = _sum(group)
        part, whole = sums["detected"], sums["injections"] - sums["noops"]
        detected = proportion_of(part, whole) if intervals else {"k": part, "n": whole}
        layers = {layer: sums["layers"].get(layer, 0) for layer in LAYERS}
        return {
            "injected": sums["injections"],
            "noops": sums["noops"],
            **detected,
            "untyped": sums["untyped"],
            **layers,
        }

    return TableSpec(
        name, title, (name,), (value("fault", "fault", label),), (Cells(columns, read),)
    )


_RANDOM = _sliced(
    "random",
    "Random faults in a checkpoint of realistic content, by kind",
    lambda r: str(r.facts["fault"]),
    intervals=True,
)


def _expected(record: Record) -> str:
    row = row_of(Trial(record.key, record.facts))
    return _verdict(row.layer, row.recovers, row.missed) + (
        "" if row.exact else "; altered, which no integrity check without a key sees"
    )


def _verdict(layer: str, recovers: int | None, missed: Sequence[int]) -> str:
    said = f"refused: {layer}" if layer else "accepted"
    recovered = "nothing is recovered" if recovers is None else f"step {recovers} is recovered"
    return f"{said}; {recovered}" + (
        f"; the records miss {', '.join(map(str, missed))}" if missed else ""
    )


def _others(group: Group) -> str | None:
    others = {
        _verdict(r.found["layer"], r.found["recovered"], r.found["missed"])
        for r in group
        if not r.found["as_expected"]
    }
    return "; ".join(sorted(others)) or None


def _recovered(r: Record) -> bool:
    return bool(
        r.found["recovered"] == r.found["expected"]
        and r.found["outcome"] == "previous"
        and r.found["named"]
        and r.found["untouched"]
    )


# The random arm's names for what it counts of our integrity check, beside the stock loaders'.
_OURS = {"raised": "detected", "silent_wrong": "silent_wrong", "harmless": "noops"}


def _flips(what: str) -> Callable[[Group], int]:
    return lambda group: sum(
        r.found[what] if "loader" in r.facts else r.found[_OURS[what]] for r in group
    )


def _all_flips(group: Group) -> int:
    return sum(_flips(what)(group) for what in _OURS)


def _anchors(results: TrialResults) -> ResultTable:
    """Stock loaders, and ours beside them; nothing of ours alone."""
    return _ANCHORS(results if results.of("anchors") else TrialResults(results.context, ()))


_ANCHORS = TableSpec(
    "anchors",
    "Stock loaders under one flipped bit",
    ("anchors", "random"),
    by=(
        value(
            "loader",
            "loader",
            lambda r: r.facts.get("loader", "the integrity check, in the random arm"),
        ),
    ),
    columns=(
        cell("flips", "flips", "count", _all_flips),
        cell("raised", "refused", "count", _flips("raised")),
        cell("harmless", "tensors all the same", "count", _flips("harmless")),
        share(_flips("silent_wrong"), _all_flips, "silently wrong"),
    ),
    note=(
        "One flipped bit anywhere in what the loader's own save wrote (128 KiB and 64 KiB of"
        " float32); wrong: other tensors, and no error."
    ),
    where=lambda r: r.facts["arm"] == "anchors" or r.facts["fault"] == "bitflip",
)


def answers(results: TrialResults) -> dict[str, str]:
    """By mutant. found: something wrong passes (or an exception is raised). backed: see the table's
    note. A pair must let through more than its second layer alone.
    """
    by_name = {str(r.facts["mutant"]): r.found for r in results.of("planted")}
    bad = {
        name: int(result["undetected"]) + int(result["untyped"]) for name, result in by_name.items()
    }

    def answer(name: str) -> str:
        first = name.partition(" + ")[0]
        back = BACKED.get(first)
        if name in MUTANTS and (bad[name] or back is None):
            return "found" if bad[name] else "NOT FOUND"
        pair, alone = bad.get(f"{first} + {back}"), bad.get(str(back))
        if pair is None or alone is None or pair <= alone:
            return "NOT FOUND"
        if name in MUTANTS:
            return "backed" if by_name[name]["elsewhere"] else "NOT FOUND"
        return "found"

    return {name: answer(name) for name in by_name}


def _planted(results: TrialResults) -> ResultTable:
    given = answers(results)
    return TableSpec(
        "planted",
        "Integrity checks with a layer left out, and whether the study sees it",
        ("planted",),
        columns=(
            fact("mutant", "left out of the integrity check"),
            *(
                found(name, label, "count")
                for name, label in (
                    ("cases", "cases"),
                    ("undetected", "let through"),
                    ("untyped", "exceptions"),
                )
            ),
            value(
                "elsewhere",
                "caught by another layer",
                lambda r: (
                    ", ".join(f"{layer}: {n}" for layer, n in r.found["elsewhere"].items()) or None
                ),
            ),
            value("first", "first let through", lambda r: (r.found["first"] or [None])[0]),
            value("answer", "answer", lambda r: given[str(r.facts["mutant"])]),
        ),
        note=(
            "backed: the layer behind it catches all of it, and both left out together let through"
            " more than that layer left out alone."
        ),
    )(results)


TABLES = (
    _DETECTION,
    TableSpec(
        "first-layer",
        "The layer of the integrity check that refuses first",
        ("published",),
        by=(fact("fault", "fault"),),
        columns=(Cells(_LAYERS, _first_seen),),
    ),
    _RANDOM,
    _sliced(
        "exhaustive",
        "Every place of a small checkpoint, by file",
        lambda r: f"{r.facts['layout']}: {r.facts['file']}",
        intervals=False,
    ),
    TableSpec(
        "structural",
        "Files and folders moved, missing, linked and forged",
        ("structural",),
        by=(fact("layout", "layout"), value("damage", "damage", lambda r: r.facts["row"])),
        columns=(
            value("expected", "expected verdict", _expected),
            cell("found", "other verdicts found", "text", _others),
            count("k", "as expected", lambda r: r.found["as_expected"]),
            size(),
        ),
    ),
    TableSpec(
        "recovery",
        "The newest k of four damaged",
        ("recovery",),
        by=(fact("layout", "layout"), fact("damaged", "newest damaged", "count")),
        columns=(proportion(_recovered, "newest whole one recovered"),),
    ),
    TableSpec(
        "clean",
        "Verifications of checkpoints that nobody touched",
        ("clean",),
        by=(fact("layout", "layout"), fact("copied", "half of them copied by")),
        columns=(
            share(
                lambda group: sums(group, "refused")["refused"],
                lambda group: sums(group, "verified")["verified"],
                "refused",
            ),
        ),
    ),
    _anchors,
    _planted,
)


def figures(results: TrialResults) -> Iterator[Figure]:
    rows = [row for row in _DETECTION(results).rows if row["fault"] in PUBLISHED]
    if not rows:
        return
    printed = [PUBLISHED[row["fault"]][0] for row in rows]
    series = (
        shares_series("here", [(row["k"], row["n"]) for row in rows]),
        shares_series("published", [(k, PUBLISHED_TRIALS) for k in printed]),
    )
    title = "Detection rates of effective corruption, Wilson 95% intervals"
    names = tuple(row["fault"] for row in rows)
    yield Figure("detection", title, "bars", "fault", "share detected", series, names)


def _keys(records: Iterable[Record], bad: Callable[[Record], object]) -> list[str]:
    return [record.key for record in records if bad(record)]


def _published_gates(records: Sequence[Record]) -> Iterator[Gate]:
    effective, unchanged = (
        [r for r in records if r.found["changed"]],
        [r for r in records if _unchanged(r)],
    )
    noops = [r for r in unchanged if r.facts["fault"] != CONTROL]
    undetected = _keys(effective, lambda r: r.found["outcome"] == "silent_wrong")
    blind = [
        f"no effective {fault}"
        for fault in PUBLISHED_FAULTS
        if not any(r.facts["fault"] == fault for r in effective)
    ]
    yield nothing(
        "published: detected",
        [*undetected, *blind],
        f"{len(effective)} effective faults, all detected",
    )
    accepted = f"{len(unchanged)} unchanged checkpoints, {len(noops)} of them injected, accepted"
    yield nothing("published: no false positive", _keys(unchanged, _detected), accepted)
    yield nothing(
        "published: typed",
        _keys(records, lambda r: r.found["outcome"] == "untyped"),
        "no exception came out of the integrity check",
    )
    yield nothing(
        "published: no-ops",
        [] if noops else ["nothing was injected that changes nothing"],
        f"{len(noops)} zero ranges over zeros",
    )


def _sliced_gates(arm: str, found: dict[str, Any]) -> Iterator[Gate]:
    effective, first = found["injections"] - found["noops"], found["first"]
    said = (
        f"{found['detected']} of {effective} effective; first miss:"
        f" {first.get('silent_wrong', 'none')}"
    )
    yield Gate(f"{arm}: detected", found["detected"] == effective > 0, said)
    said = (
        f"{found['noops']} that changed nothing; first refused:"
        f" {first.get('noops_refused', 'none')}"
    )
    yield Gate(f"{arm}: no-ops", found["noops_refused"] == 0, said)
    said = (
        f"{found['untyped']} exceptions out of the integrity check; first:"
        f" {first.get('untyped', 'none')}"
    )
    yield Gate(f"{arm}: typed", found["untyped"] == 0, said)


def gates(results: TrialResults) -> Iterator[Gate]:
    """The gates of the arms that have records."""
    if published := results.of("published"):
        yield from _published_gates(published)
    if drawn := results.of("random"):
        yield from _sliced_gates("random", _sum(drawn))
        idle = [
            row["fault"]
            for row in _RANDOM(results).rows
            if row["n"] == 0 and row["injected"] >= _FEW
        ]
        yield Gate(
            "random: injected",
            not idle,
            f"faults that never changed a byte: {', '.join(idle) or 'none'}",
        )
    if exhaustive := results.of("exhaustive"):
        yield from _sliced_gates("exhaustive", tried := _sum(exhaustive))
        enough = tried["injections"] >= LEAST_EXHAUSTIVE
        yield Gate(
            "exhaustive: enough",
            enough,
            f"{tried['injections']} mutations, at least {LEAST_EXHAUSTIVE} are asked for",
        )
    if structural := results.of("structural"):
        kinds = len({(r.facts["layout"], r.facts["row"]) for r in structural})
        as_expected = (
            f"{plural(len(structural), 'trial')} of {kinds} kinds ended as the table of verdicts"
            " says"
        )
        yield nothing(
            "structural: as expected",
            _keys(structural, lambda r: not r.found["as_expected"]),
            as_expected,
        )
        yield nothing(
            "structural: typed",
            _keys(structural, lambda r: r.found["untyped"]),
            "no exception came out of integrity check or recovery",
        )
    if recovery := results.of("recovery"):
        kept = (
            f"{len(recovery)} recoveries found the newest whole one, named what they passed over,"
            " and touched nothing"
        )
        yield nothing("recovery", _keys(recovery, lambda r: not _recovered(r)), kept)
    if clean := results.of("clean"):
        refused, verified = sums(clean, "refused", "verified").values()
        first = next((r.found["first"][0] for r in clean if r.found["first"]), "none")
        yield Gate(
            "clean: no false positive",
            refused == 0 < verified,
            f"{refused} of {verified} clean checkpoints refused; first: {first}",
        )
    if results.of("anchors"):
        blind = [row["loader"] for row in _ANCHORS(results).rows if row["raised"] + row["k"] == 0]
        yield nothing("anchors: effective", blind, "the flips had an effect on every stock loader")
    if results.of("planted"):
        yield from mutants_gate(
            {name: answer != "NOT FOUND" for name, answer in answers(results).items()}
        )


def notes(results: TrialResults) -> Iterator[str]:
    rows = [row for row in _DETECTION(results).rows if row["fault"] in PUBLISHED_FAULTS]
    if rows:
        unchanged, seen, tried = (sum(row[key] for row in rows) for key in ("noops", "k", "n"))
        yield (
            f"{unchanged} of the injections over the three faults changed no byte and must be"
            " accepted; the published study counted one such as missed."
        )
        if seen == tried > 0:
            yield (
                "With none missed, the share of such faults that would be is below"
                f" {upper_bound(tried):.2%} (one-sided, exact, 95%)."
            )
    if drawn := results.of("random"):
        found = _sum(drawn)
        yield (
            f"Random faults: {found['detected']} of {found['injections'] - found['noops']}"
            " effective ones detected."
        )
    if exhaustive := results.of("exhaustive"):
        found = _sum(exhaustive)
        yield (
            f"Every place: {found['injections']} mutations (each bit and length of the records,"
            f" first and last bit of each byte and every 7th length of the parts), {found['noops']}"
            f" of them of {LATEST}, which decides nothing; enumerated, so no interval."
        )
    if clean := results.of("clean"):
        refused, verified = sums(clean, "refused", "verified").values()
        bound = "" if refused else f", a rate below {upper_bound(verified):.3%} (one-sided)."
        yield f"False positives: {refused} of {verified} clean verifications{bound}"
    yield (
        "SHA-256 finds every change of what it covers by construction: these intervals measure the"
        " injector and bytes that nothing covers, not SHA-256."
    )
    yield (
        "A consistent rewrite of part, manifest and commit passes any integrity check without a"
        " key; a checkpoint that is gone is missed by the records outside the folder only, and with"
        " those rewritten or gone too, by nobody."
    )
