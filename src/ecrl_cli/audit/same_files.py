"""The promise "same files": what the job leaves, where the undisturbed runs agree with each other,
is the same in an arm with failures.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ecrl_cli.audit.causes import hooks_ran
from ecrl_cli.audit.components import BROKEN, KEPT, NOT_CHECKED, SHOWN, UNKNOWN, ArmFinding, Judged
from ecrl_cli.audit.file_contents import Content
from ecrl_cli.audit.file_names import (
    blanked,
    counts_restarts,
    is_of_attempt,
    is_series,
    is_step,
    not_judged,
)
from ecrl_cli.audit.files import Inventory, read_inventory
from ecrl_cli.audit.records import Arm
from ecrl_cli.audit.saving import processes_of, removals
from ecrl_cli.audit.text_files import CUT, OWN, Difference, Restarts, differences_of_lines
from ecrl_cli.errors import plural, visible

PROMISE = "same files"
_DIGEST = re.compile(r" [0-9a-f]{16}$")
_LAST_INDEX = re.compile(r"^(.*)\[(\d+)\](.*?)$", re.DOTALL)
_FLOAT = re.compile(r"^(?:tensor\()?-?(?:\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|nan|inf)\b")
# six significant digits at least
_EXACT = re.compile(r"^-?(?=[0.]*[1-9](?:\.?\d){5})\d+\.\d{3,}(?:e[+-]?\d+)?$")
_TENSORS_DIFFER = re.compile(r"\d tensors? differs?, first |: its only tensor")
_TENSOR = re.compile(r"\) [0-9a-f]{16}$")
_ALONE = "there is one undisturbed run"
_LONGEST = 60  # characters of a value in a sentence
# failures after which a job may save once more, at a moment of its own
_GRACEFUL = ("term", "exit", "raise", "oom")


@dataclass
class _Comparison:
    """An arm held against the undisturbed runs.

    `extra`: files that only the arm has. `restarts`: of the arm. `graceful`: whether a failure let
    the job save once more. `broken`: by file the sentence about it. `aside`: what was not judged,
    and why. `files`, `values`: how many agreed and are the same. `unlike`: by the reason, files in
    which the undisturbed runs themselves are not seen to agree. `anew`: by file, an attempt that
    began it anew. `in_part`: files of which a part is judged, and is the same. `scored`: as in
    `Undisturbed`.
    """

    ours: Inventory
    restarts: Restarts
    graceful: bool
    anew: dict[str, int]
    extra: dict[str, Content] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    aside: list[str] = field(default_factory=list)
    files: int = 0
    values: int = 0
    unlike: dict[str, list[str]] = field(default_factory=dict)
    in_part: list[str] = field(default_factory=list)
    scored: frozenset[str] = frozenset()

    def undetermined(self, name: str, theirs: Sequence[Content]) -> None:
        """The undisturbed runs have other bytes in the file, or other kinds of it, or not all."""
        problem = next((content.problem for content in theirs if content.kind == "unreadable"), "")
        reason = "the undisturbed runs differ in it"
        reason = f"it cannot be compared by content ({visible(problem)})" if problem else reason
        self.unlike.setdefault(reason, []).append(visible(name))


@dataclass(frozen=True)
class Undisturbed:
    """The record of an undisturbed run, for its files. `losses`: by step, the mean over passes and
    ranks (empty where one has none); `rates`: every learning rate. `scored`: files that
    it does not keep by their age, by name without numbers: it removed a newer and left an older.
    """

    losses: tuple[float, ...] = ()
    rates: frozenset[float] = frozenset()
    scored: frozenset[str] = frozenset()

    @classmethod
    def of(cls, judged: Judged | None) -> Undisturbed:
        if judged is None:
            return cls()
        steps = [
            [step for _, step in ranks.values()] for _, ranks in sorted(judged.path.steps.items())
        ]
        parts = [
            [loss for step in made for loss in step.losses if loss is not None] for made in steps
        ]
        left = read_inventory(judged.arm.folder)
        return cls(
            tuple(math.fsum(losses) / len(losses) for losses in parts) if all(parts) else (),
            frozenset(rate for made in steps for step in made for rate in step.lr),
            frozenset(
                _unnumbered(path)
                for _, _, path in removals(judged.arm)
                for other in (left.files if left else ())
                if _unnumbered(other) == _unnumbered(path) and _numbers(other) < _numbers(path)
            ),
        )


def same_files(
    references: Sequence[Inventory | None],
    judged: Judged,
    stable: bool = True,
    told: Undisturbed | None = None,
) -> ArmFinding:
    """Compare what an arm has left with what the undisturbed runs have. `stable`: whether these did
    the same steps, bit for bit. `told`: what else is known of them.
    """
    told = told or Undisturbed()
    arm, undisturbed = judged.arm, [reference for reference in references if reference is not None]
    inventory = read_inventory(arm.folder)
    if inventory is None or not undisturbed:
        said = (
            "no undisturbed run's files are on record"
            if inventory is not None
            else "the arm's files are not on record"
        )
        return ArmFinding(PROMISE, NOT_CHECKED, said, arm.name)
    if len(undisturbed) == 1:
        undisturbed.append(_tensors_only(undisturbed[0]))
    if judged.path.resized:
        return ArmFinding(
            PROMISE,
            NOT_CHECKED,
            "with another number of processes sums are taken in another order",
            arm.name,
        )
    if arm.launches and arm.launches[-1].exit_code != 0:
        return ArmFinding(
            PROMISE,
            NOT_CHECKED,
            "the job did not come to its end: its files are not those of a finished run",
            arm.name,
        )
    went_on = [begun.after for begun in judged.path.resumed]
    steps = tuple(after for after in went_on if after is not None)
    restarts = Restarts(
        max(len(arm.attempts) - 1, len(arm.launches) - 1),
        steps if len(steps) == len(went_on) else (),
        judged.path.last,
        told.losses,
        told.rates,
    )
    graceful = any(text.startswith(_GRACEFUL) for text in arm.planned.values())
    seen = _Comparison(
        inventory, restarts, graceful, _begun_anew(arm, inventory), scored=told.scored
    )
    finding = _finding(arm.name, _compared(undisturbed, seen), stable)
    hints = hooks_ran(judged) if finding.status == BROKEN else ()
    return replace(finding, evidence=finding.evidence + hints)


def _tensors_only(inventory: Inventory) -> Inventory:
    """In the place of a second undisturbed run, which would show what differs from run to run:
    tensors do not, times and the like may.
    """
    files = {}
    for name, content in inventory.files.items():
        tensors = {key: text for key, text in content.entries.items() if _TENSOR.search(text)}
        kind = content.kind if content.kind == "values" and tensors else ""
        files[name] = replace(content, kind=kind, digest="", entries=tensors, problem=_ALONE)
    return replace(inventory, files=files)


def _finding(arm: str, seen: _Comparison, stable: bool) -> ArmFinding:
    aside = tuple(f"not judged: {text}" for text in seen.aside[:SHOWN])
    aside += (f"not judged: {len(seen.aside) - SHOWN} more",) if len(seen.aside) > SHOWN else ()
    if seen.broken:
        sentences = list(seen.broken.values())
        lead = _lead(sentences)
        more = len(sentences) - len(lead)
        rest = f"; {plural(more, 'more file differs', 'more files differ')}" if more else ""
        chance = "" if stable else ": the job is not deterministic, it may be chance"
        return ArmFinding(
            PROMISE,
            BROKEN if stable else UNKNOWN,
            "; ".join(lead) + rest + chance,
            arm,
            None,
            (*[text for text in sentences[:SHOWN] if text not in lead], *aside),
        )
    if not seen.files and not seen.in_part:
        return ArmFinding(
            PROMISE,
            NOT_CHECKED,
            "nothing that the undisturbed runs agree in could be compared"
            if aside
            else "the undisturbed runs leave no file that they agree in",
            arm,
            None,
            aside,
        )
    part = ", ".join(seen.in_part[:3])
    part += f" and {len(seen.in_part) - 3} more" if len(seen.in_part) > 3 else ""
    said = (
        f"{plural(seen.files, 'file')} with {plural(seen.values, 'value')}"
        f" {'is' if seen.files == 1 else 'are'} as in the undisturbed runs"
    )
    said += f", a part of {part} among them" if part else ""
    if not seen.files:
        said = f"a part of {part} is as in the undisturbed runs ({plural(seen.values, 'value')})"
    for reason in (CUT, OWN):
        cut = [text.removesuffix(f": {reason}") for text in seen.aside if text.endswith(reason)]
        said += f"; not equal, and taken for {reason}: {cut[0]}" if cut else ""
        said += f" and {len(cut) - 1} more" if len(cut) > 1 else ""
    unread = [text.partition(":")[0] for text in seen.aside if not text.endswith((CUT, OWN))]
    unread = [name for name in unread if name not in seen.in_part]
    said += f"; not judged: {', '.join(unread[:3])}" if unread else ""
    said += f" and {len(unread) - 3} more" if len(unread) > 3 else ""
    return ArmFinding(PROMISE, KEPT, said, arm, None, aside)


def _lead(sentences: list[str]) -> list[str]:
    """The first sentence; where it tells of tensors alone, also the first that names a value: a
    best model that differs follows from the best score that was lost.
    """
    first, *others = sentences
    telling = [text for text in others if not _TENSORS_DIFFER.search(text)]
    return [first, *(telling[:1] if _TENSORS_DIFFER.search(first) else [])]


def _begun_anew(arm: Arm, left: Inventory) -> dict[str, int]:
    """By file, a restarted attempt that began it anew although more than a line was in it, or a
    process of an earlier attempt had opened it several times: what was in it then had been written.
    """
    written: Counter[str] = Counter()
    anew: dict[str, int] = {}
    for attempt, process in processes_of(arm):
        opened: Counter[str] = Counter()
        for event in process.files:
            if event.get("op") in ("write", "rename"):
                path = str(event.get("to") or event.get("path", ""))
                if attempt and not opened[path] and not event.get("append"):
                    lines = left.files[path].lines[:1] if path in left.files else ()
                    emptied = event.get("emptied")
                    rows = isinstance(emptied, int) and emptied > sum(map(len, lines)) + 2
                    if written[path] > 1 or rows:
                        anew.setdefault(path, attempt)
                opened[path] += 1
        written |= opened
    return anew


def _compared(references: list[Inventory], seen: _Comparison) -> _Comparison:
    first, *others = references
    ours = seen.ours
    seen.extra = {name: content for name, content in ours.files.items() if name not in first.files}
    extra = seen.extra
    for name, content in first.files.items():
        if reason := not_judged(name):
            if name not in ours.files or not _equal([content], ours.files[name]):
                seen.aside.append(f"{visible(name)}: {reason}")
        elif any(
            name not in other.files or other.files[name].kind != content.kind for other in others
        ):
            seen.undetermined(name, [run.files[name] for run in references if name in run.files])
        else:
            _file(name, [content, *(other.files[name] for other in others)], seen)
    seen.aside += [f"{visible(name)}: only in this arm" for name in extra if not not_judged(name)]
    for reason, names in seen.unlike.items():
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        seen.aside.append(f"{', '.join(names[:SHOWN])}{more}: {reason}")
    seen.aside += [*first.left_out, *ours.left_out]
    return seen


def _file(name: str, theirs: list[Content], seen: _Comparison) -> None:
    """Compare one file, which every undisturbed run leaves; `theirs`: its contents there."""
    content, shown = seen.ours.files.get(name), visible(name)
    if content is not None and all(
        content.digest == other.digest and content.kind == other.kind for other in theirs
    ):
        seen.files, seen.values = seen.files + 1, seen.values + (len(content.entries) or 1)
        return
    renamed = next(
        (
            path
            for path in seen.extra
            if blanked(path) == blanked(name) and _equal(theirs, seen.extra[path])
        ),
        "",
    )
    if renamed:
        seen.files += 1
        seen.aside.append(f"{visible(renamed)}: holds what is {shown} in the undisturbed runs")
        return
    if content is None:
        _missing(name, theirs, seen)
        return
    again = seen.anew.get(name)
    differences, aside, same = _differences(name, theirs, content, seen.restarts, again)
    if differences and seen.graceful and _of_another_moment(theirs, content):
        seen.aside.append(
            f"{shown}: the signal had it saved at another step than in the undisturbed runs"
            f" ({_moment(content)})"
        )
        return
    seen.aside += [f"{shown}: {text}" for text in aside]
    if differences:
        seen.broken[name] = f"{shown}: {_sentence(differences, theirs, content)}"
    elif same:
        seen.files, seen.values = seen.files + (not aside), seen.values + same
        seen.in_part += [shown] if aside else []
    elif not aside:
        seen.undetermined(name, theirs)


def _equal(theirs: list[Content], content: Content) -> bool:
    """Whether the undisturbed runs agree in a file and `content` is the same."""
    return all(
        content.kind == other.kind and content.digest == other.digest for other in theirs
    ) or (
        content.kind == "values"
        and bool(content.entries)
        and not _differences("", theirs, content, Restarts(0))[0]
    )


def _missing(name: str, theirs: list[Content], seen: _Comparison) -> None:
    """A file that the undisturbed runs leave and the arm does not."""
    pattern = _unnumbered(name)
    alike = [path for path in seen.extra if _unnumbered(path) == pattern]
    newer = [
        path
        for path in seen.ours.files
        if _unnumbered(path) == pattern and _numbers(path) > _numbers(name)
    ]
    if alike and newer and pattern not in seen.scored:
        seen.aside.append(
            f"{visible(name)}: not kept here, where {visible(alike[0])} was counted among those to"
            " keep"
        )
    elif all(content.kind in ("picture", "unreadable") for content in theirs):
        seen.aside.append(f"{visible(name)}: missing")
    else:
        seen.broken[name] = f"{visible(name)}: missing, the undisturbed runs leave it"


def _unnumbered(name: str) -> str:
    return re.sub(r"\d+", "0", name)


def _numbers(name: str) -> list[int]:
    return [int(number[:18]) for number in re.findall(r"\d+", name)]


def _differences(
    name: str, theirs: list[Content], ours: Content, restarts: Restarts, anew: int | None = None
) -> tuple[list[Difference], list[str], int]:
    """Differences from the values in which the undisturbed runs agree, values that are not judged,
    and how many values are the same.
    """
    kind = theirs[0].kind
    if kind == "lines" and ours.kind == "lines":
        return differences_of_lines(
            name, [content.lines for content in theirs], ours.lines, restarts, anew
        )
    if kind == "values":
        if ours.kind != "values":
            damaged = ours.kind == "unreadable"
            return (
                ([Difference("", "", ours.problem)] if damaged else []),
                ([] if damaged else [ours.problem or "other contents"]),
                0,
            )
        return differences_of_values(theirs, ours, restarts)
    if any(content.digest != theirs[0].digest for content in theirs):
        return [], [], 0
    if kind in ("bytes", "link") and ours.kind == kind:
        due, is_now = (
            (theirs[0].digest, ours.digest)
            if kind == "link"
            else (f"{theirs[0].bytes} bytes", f"{ours.bytes} bytes")
        )
        return [Difference("link to" if kind == "link" else "", due, is_now)], [], 0
    return [], [f"differs, {theirs[0].problem or 'not compared by content'}"], 0


def differences_of_values(
    theirs: list[Content], ours: Content, restarts: Restarts
) -> tuple[list[Difference], list[str], int]:
    first, *others = theirs
    agreed = {
        key: text
        for key, text in first.entries.items()
        if all(other.entries.get(key) == text for other in others)
    }
    differing = [
        Difference(key, text, ours.entries.get(key, ""))
        for key, text in agreed.items()
        if ours.entries.get(key) != text
    ]
    same = len(agreed) - len(differing)
    attempt = [difference for difference in differing if _is_of_attempt(difference)]
    aside = [f"{', '.join(difference.key for difference in attempt[:3])}: {OWN}"] if attempt else []
    differing = [difference for difference in differing if difference not in attempt]
    repeated = {
        series
        for series in _series(differing)
        if _is_subsequence(_elements(first, series), _elements(ours, series))
    }
    aside += [
        f"{series or 'the list'}: steps that were done twice are in it twice"
        for series in sorted(repeated)
    ]
    differing = [
        difference for difference in differing if _series_of(difference.key)[0] not in repeated
    ]
    means = list(_means_over_the_restart(differing, first, restarts))
    aside += [f"{', '.join(difference.key for difference in means[:3])}: {CUT}"] if means else []
    return [difference for difference in differing if difference not in means], aside, same


def _is_of_attempt(difference: Difference) -> bool:
    """Not so a count of restarts that is lower than in the undisturbed runs: it counts something of
    the training (warm restarts, say). Nor a number in which two runs agree to six digits and more:
    it is read from no clock.
    """
    key, due, here = difference.key, difference.due, difference.here
    if _TENSOR.search(due) or _TENSOR.search(here):
        return False
    fewer = due.isdecimal() and here.isdecimal() and int(here) < int(due)
    return (
        (is_of_attempt(key) and not (fewer and counts_restarts(key)) and not _EXACT.match(due))
        or "{dir}" in due
        or "{dir}" in here
    )


def _series_of(key: str) -> tuple[str, int, str]:
    """For a value in a list: the list's path, the index, the path within the element. Index -1: in
    no list.
    """
    match = _LAST_INDEX.match(key)
    return (match[1], int(match[2][:9]), match[3]) if match else ("", -1, key)


def _series(differing: list[Difference]) -> set[str]:
    """The lists in which values differ, and which record the training by their names."""
    return {
        series
        for difference in differing
        for series, index, _ in [_series_of(difference.key)]
        if index >= 0 and is_series(series)
    }


def _elements(content: Content, series: str) -> list[tuple[tuple[str, str], ...]]:
    elements: dict[int, list[tuple[str, str]]] = {}
    for key, text in content.entries.items():
        path, index, within = _series_of(key)
        if path == series and index >= 0:
            elements.setdefault(index, []).append((within, text))
    return [tuple(sorted(elements[index])) for index in sorted(elements)]


def _is_subsequence(short: Sequence[object], long: Sequence[object]) -> bool:
    rest = iter(long)
    return bool(short) and all(item in rest for item in short)


def _means_over_the_restart(
    differing: list[Difference], due: Content, restarts: Restarts
) -> Iterator[Difference]:
    """Single values of a record of the training that differ, at most one for each restart: means
    over steps of which a new process saw only some.
    """
    groups: dict[tuple[str, str], list[tuple[int, Difference]]] = {}
    lengths = _lengths(due) if differing else {}
    for difference in differing:
        series, index, within = _row_of(difference.key, lengths)
        if (
            index >= 0
            and is_series(series + within)
            and _FLOAT.match(difference.due)
            and _FLOAT.match(difference.here)
        ):
            groups.setdefault((series, within), []).append((index, difference))
    apart = {difference.key for difference in differing}
    for (series, _), members in groups.items():
        indices, rows = [index for index, _ in members], lengths[series]
        if restarts.cut(indices, rows) and not any(
            restarts.uncut(
                index,
                rows,
                difference.due,
                (
                    text
                    for key, text in due.entries.items()
                    if key not in apart and _row_of(key, lengths)[1] == index
                ),
            )
            for index, difference in members
        ):
            yield from (difference for _, difference in members)


def _lengths(content: Content) -> dict[str, int]:
    """By its path, the number of elements of each list."""
    indices: dict[str, set[int]] = {}
    for key in content.entries:
        series, index, _ = _series_of(key)
        while index >= 0:
            indices.setdefault(series, set()).add(index)
            series, index, _ = _series_of(series)
    return {series: len(places) for series, places in indices.items()}


def _row_of(key: str, lengths: dict[str, int]) -> tuple[str, int, str]:
    """Like `_series_of`; of a list of lists that is no shorter than they are, its own element."""
    series, index, within = _series_of(key)
    outer, row, between = _series_of(series)
    if row >= 0 and not between and lengths[outer] >= lengths[series]:
        return outer, row, f"[{index}]{within}"
    return series, index, within


def _of_another_moment(theirs: list[Content], ours: Content) -> bool:
    """Whether the file's own counter of steps tells that it was saved at another step."""
    counters = [
        key
        for key in theirs[0].entries
        if is_step(key)
        and all(other.entries.get(key) == theirs[0].entries[key] for other in theirs)
    ]
    return any(
        key in ours.entries and ours.entries[key] != theirs[0].entries[key] for key in counters
    )


def _moment(content: Content) -> str:
    return next(
        (f"{key} {_shown(text)}" for key, text in content.entries.items() if is_step(key)),
        "a signal",
    )


def _sentence(differences: list[Difference], theirs: list[Content], ours: Content) -> str:
    first = differences[0]
    runs = "both undisturbed runs" if len(theirs) == 2 else f"all {len(theirs)} undisturbed runs"
    runs = "the undisturbed run" if theirs[-1].problem == _ALONE else runs
    if ours.kind == "unreadable":
        return f"cannot be read ({visible(ours.problem)})"
    tensors = [difference for difference in differences if _TENSOR.search(difference.due)]
    if len(tensors) == len(differences) and (
        len(tensors) > 1 or not first.due.startswith("tensor(")
    ):
        total = sum(bool(_TENSOR.search(text)) for text in theirs[0].entries.values())
        which = visible(first.key)
        if total == 1:
            return f"its only tensor{f', {which},' if which else ''} differs"
        return (
            f"{len(tensors)} of {plural(total, 'tensor')}"
            f" {'differs' if len(tensors) == 1 else 'differ'}, first {which}"
        )
    first = next((difference for difference in differences if difference not in tensors), first)
    rest = f" ({len(differences)} values differ)" if len(differences) > 1 else ""
    key = visible(first.key[-160:])
    if not first.here:
        return f"{key} is missing, it is {_shown(first.due)} in {runs}{rest}"
    if _shown(first.due) == _shown(first.here):
        return f"{key or 'its content'} differs from {runs}{rest}"
    return (
        f"{key + ' is' if key else 'has'} {_shown(first.here)}, in {runs} {_shown(first.due)}{rest}"
    )


def _shown(text: str) -> str:
    plain = _DIGEST.sub("", text)
    plain = re.sub(r"^(tensor\([^)]*\)) \w+ \(.*\)$", r"\1", plain)
    plain = visible(plain)
    return plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST]}..."
