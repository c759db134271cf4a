"""Real training runs as trials, compared with their reference; and what the studies of them share,
which differ in what they draw and check.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from ecrl_cli.config.build import build
from ecrl_cli.config.plan_kinds import plan_kind
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import EcrlError, RunHeld, plural
from ecrl_cli.failures.fault_log import fired_indices
from ecrl_cli.failures.plan import plan
from ecrl_cli.failures.plan import planned as parts
from ecrl_cli.linux import processes
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.runs.run import RunContext, run
from ecrl_cli.runs.run_plan import plan_run
from ecrl_cli.runs.supervisor_restarter import wanted
from ecrl_cli.studies.frame.gates import GateRule
from ecrl_cli.studies.frame.limits import Overdue, deadline, reap, remaining, shared_memory
from ecrl_cli.studies.frame.result import ResultTable
from ecrl_cli.studies.frame.study import Arm, Record, StudyContext, Trial, TrialResults, command
from ecrl_cli.studies.frame.tables import (
    TableSpec,
    fact,
    found,
    grouped,
    item,
    items,
    mutants_table,
    table,
    value,
    yes,
)
from ecrl_cli.studies.mutants.recovery import environment
from ecrl_cli.studies.mutants.recovery import planted as with_bug
from ecrl_cli.supervision.attempts.stop_signals import StopSignals
from ecrl_cli.supervision.attempts.supervisor_record import read_record
from ecrl_cli.supervision.console import SilentUI
from ecrl_cli.supervision.launch.launcher import LauncherCache
from ecrl_cli.supervision.run_lock import run_lock
from ecrl_cli.verify.verdict import VALID, Verdict
from ecrl_cli.verify.verify_run import verify_run

STOPPED = {130: signal.SIGINT, 143: signal.SIGTERM}
RUN_S = 300.0  # a longer run counts as hung, whatever its supervisor reports
RUNS = 12  # maximum runs to find a planted bug
SHOWN = ("invalid", "differs", "exit")  # possible outcomes of a recovery bug

Keys = Mapping[str, Any]


@dataclass
class TrainedRun:
    """A run's result. `outcome`: valid, or the first problem: hung | left | exit | invalid |
    unknown | differs | idle (a planned failure did not happen).

    `code`: the exit code. `fired`: [kind, moment] of each typed entry that happened. `resized`: how
    often the number of ranks changed between attempts. `left`: leftovers. `why`: the first
    evidence.
    """

    outcome: str = VALID
    code: int = 0
    fired: list[list[str]] = field(default_factory=list)
    attempts: int = 0
    resized: int = 0
    left: list[str] = field(default_factory=list)
    why: str = ""
    digests: str = ""


# Called with the finished run, its folder and its reference's; writes problems into the run.
Look = Callable[[TrainedRun, RunLayout, RunLayout], None]


class Bench:
    """`scratch`: an empty folder. `bug`: planted into every training process, never into a
    reference.
    """

    def __init__(self, scratch: Path, bug: str = "") -> None:
        self._scratch, self._bug = scratch.resolve(), bug
        self._launchers: dict[str, LauncherCache] = {}
        self._references: dict[str, Path] = {}

    def play(
        self, keys: Keys, reference: Keys, hash_seed: str = "", look: Look | None = None
    ) -> TrainedRun:
        """Train by `keys` to the end; `reference`: the undisturbed run with the same final state,
        unless `look` is given, which then judges the final state. `hash_seed`: PYTHONHASHSEED of
        the training processes.
        """
        undisturbed, root = self._reference(reference), self._scratch / "run"
        config, before = build(keys), shared_memory()
        found = TrainedRun()
        try:
            found.code = self._run(config, root, self._bug, hash_seed)
            reap()
            found.left = [
                *(f"process {pid}" for pid in remaining(root)),
                *sorted(shared_memory() - before),
            ]
            _judged(found, root, undisturbed, config, look is None)
            if look is not None:
                look(found, RunLayout(root), RunLayout(undisturbed))
        except Overdue as late:
            found.outcome, found.why = "hung", str(late)
        finally:
            _clear(root)
        return found

    def close(self) -> None:
        self._close_launchers()
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir()

    def _close_launchers(self) -> None:
        for launchers in self._launchers.values():
            launchers.close()
        self._launchers = {}

    def _reference(self, keys: Keys) -> Path:
        """The reference run, made once by this process without a bug."""
        name = json.dumps(keys, sort_keys=True)
        if name not in self._references:
            root = self._scratch / f"reference-{len(self._references)}"
            try:
                how = f"exit code {code}" if (code := self._run(build(keys), root, "")) else ""
            except Overdue as late:
                how = str(late)
            if how:
                _clear(root)
                raise RuntimeError(f"the reference {root.name}: {how}: {name}")
            self._references[name] = root
        return self._references[name]

    def _run(self, config: RunConfig, root: Path, bug: str, hash_seed: str = "") -> int:
        delivered, run_plan = StopSignals.delivered, plan_run(config, root)
        with (
            environment(PYTHONHASHSEED=hash_seed),
            with_bug(bug, self._scratch / "bug"),
            unheard() if wanted(run_plan.failures) else nullcontext(),
        ):
            launchers = self._launchers.setdefault(f"{bug}/{hash_seed}", LauncherCache())
            try:
                with deadline(RUN_S):
                    code = run(
                        run_plan, RunContext(_mute, launchers, show=lambda *given: SilentUI())
                    ).exit_code
            except Overdue:
                self._close_launchers()  # they may have been what hung, and are dead
                reap()
                raise
        # sent by a person: planned stops are restarted automatically
        if code in STOPPED and StopSignals.delivered > delivered:
            raise KeyboardInterrupt(STOPPED[code])
        return code


def typed(keys: Keys) -> str:
    """The single run as a command: its groups and keys as a user types them."""
    words = []
    for key, given in keys.items():
        if not isinstance(given, Mapping):
            words.append(_word(key, given))
        elif key == "write_mode":  # the name says the rest
            words.append(f"write_mode={given['name']}")
        elif key == "elastic":
            words += [_word(f"elastic.{name}", each) for name, each in given.items()]
        else:
            option, *rest = given.items()  # a group's first key is the one by which it is chosen
            words += [_word(key, option[1]), *(_word(f"{key}.{name}", each) for name, each in rest)]
    return " ".join(["ecrl train", *words])


def _word(key: str, value: object) -> str:
    if isinstance(value, Mapping):
        return f"'{key}={{{', '.join(f'{step}: {size}' for step, size in value.items())}}}'"
    if isinstance(value, list):
        return f"'{key}=[{','.join(value)}]'"
    shown = (
        str(value).lower()
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )
    return f"{key}={shown}"


def on_digits(entries: Sequence[str] = (), **keys: Any) -> dict[str, Any]:
    """The groups and keys of a run on the digits, as a user types them: `keys`, and the failures
    that are listed, if any.
    """
    found = {"device": "cpu", "dataset": {"name": "digits"}, **keys}
    return found | ({"failure": {"kind": "listed", "entries": list(entries)}} if entries else {})


class Drawn(Protocol):
    """The run of a trial: its keys with failures, and the undisturbed run with the same final
    state.
    """

    def keys(self, entries: tuple[str, ...] = ()) -> dict[str, Any]: ...

    @property
    def reference(self) -> dict[str, Any]: ...


def search(
    scratch: Path, bug: str, draw: Callable[[], tuple[Drawn, tuple[str, ...]]]
) -> dict[str, Any]:
    """Run with `bug`, at most RUNS times, until one run fails: whether, after how many, and by
    what.
    """
    bench = Bench(scratch, bug)
    try:
        for number in range(1, RUNS + 1):
            drawn, entries = draw()
            found = bench.play(drawn.keys(entries), drawn.reference)
            if found.outcome in SHOWN:
                return {"found": True, "runs": number, "by": found.why}
    finally:
        bench.close()
    return {"found": False, "runs": RUNS, "by": ""}


@contextmanager
def unheard() -> Iterator[None]:
    """Discard the output of processes started in the context, such as a separate supervisor that
    its plan kills.
    """
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _clear(root: Path) -> None:
    """Remove everything of the run in `root`."""
    processes.sweep(processes.of_run(root))
    shutil.rmtree(root, ignore_errors=True)


def _mute(line: str) -> None:
    """Log nothing: the trial's record suffices."""


def _judged(found: TrainedRun, root: Path, reference: Path, config: RunConfig, alike: bool) -> None:
    layout = RunLayout(root)
    typed = injected_entries(config, fired_indices(layout))
    found.fired = [named for named, all_of_it in typed if all_of_it]
    attempts = read_record(layout).attempts if layout.supervisor.exists() else ()
    found.attempts, found.resized = (
        len(attempts),
        sum(a.world_size != b.world_size for a, b in pairwise(attempts)),
    )
    found.digests = ending(layout)
    found.left += _held(layout)
    try:
        verdict = verify_run(root, reference)
    except EcrlError as error:
        found.outcome, found.why = "unknown", error.line()
        return
    found.outcome, found.why = _outcome(
        found, verdict, ending(RunLayout(reference)) if alike else found.digests, len(typed)
    )


def _outcome(found: TrainedRun, verdict: Verdict, due: str, typed: int) -> tuple[str, str]:
    if found.left:
        return "left", found.left[0]
    if found.code:
        return "exit", f"exit code {found.code}"
    if verdict.status != VALID:
        return verdict.status, next(
            finding.message for finding in verdict.findings if finding.status == verdict.status
        )
    if found.digests != due:
        return "differs", f"ends in {found.digests[:60]}, its reference in {due[:60]}"
    return (
        (VALID, "")
        if len(found.fired) == typed
        else (
            "idle",
            f"{len(found.fired)} of {plural(typed, 'failure was', 'failures were')} injected",
        )
    )


def injected_entries(config: RunConfig, fired: Collection[int]) -> list[tuple[list[str], bool]]:
    """[kind, moment] of each typed entry, and whether everything it stands for happened: one entry
    may be several of the plan.
    """
    found, first, kind = [], 0, plan_kind(config.failure.kind)
    for entry in kind.entries(config):
        meant = parts(entry, config, kind)
        found.append(
            ([entry.what, meant[0].moment], set(range(first, first + len(meant))) <= set(fired))
        )
        first += len(meant)
    assert first == len(plan(config)), "the plan is made of what was typed, in order"
    return found


def ending(layout: RunLayout) -> str:
    """The digests of the final state, read independently of `verify`."""
    finals = [layout.attempt(attempt).final for attempt in layout.attempts()]
    document: dict[str, str] = next(
        (json.loads(final.read_text(encoding="utf-8")) for final in finals if final.exists()), {}
    )
    return " ".join(
        str(document.get(f"{part}_digest"))
        for part in ("parameters", "buffers", "optimizer", "rng")
    )


def _held(layout: RunLayout) -> list[str]:
    try:
        with run_lock(layout):
            return []
    except RunHeld as error:
        return [error.fact]


# The outcome of a run, and the `ecrl train` command that runs it alone.
Play = Callable[[Bench, dict[str, Any]], tuple[dict[str, Any], str]]


def _bench(context: StudyContext) -> Bench:
    return Bench(context.scratch / "bench")


def run_arm(name: str, draw: Callable[[StudyContext], Iterable[Trial]], play: Play) -> Arm:
    """The trials from `draw`, one training run each; the record of an invalid one has the commands
    that rerun it.
    """

    def run(context: StudyContext, trial: Trial) -> dict[str, Any]:
        result, alone = play(context.shared(_bench), trial.facts)
        return (
            result
            if result["outcome"] == "valid"
            else result | {"replay": command(context.config, trial.key), "alone": alone}
        )

    return Arm(name, draw, run)


def runs(results: TrialResults) -> list[Record]:
    """All runs without a planted bug, in plan order."""
    return [record for record in results.records if record.facts["arm"] != "planted"]


def is_valid(record: Record) -> bool:
    return bool(record.found["outcome"] == "valid")


def phases_of(record: Record) -> list[str]:
    """Phases in which a failure hit the run, each once."""
    return list(dict.fromkeys(moment for _, moment in record.found["fired"]))


def who(entry: str) -> str:
    """The victims of a plan entry, in words."""
    ranks = entry.partition(":")[2].partition("*")[0].partition("%")[0]
    if not ranks:
        return "the target of its kind"
    return (
        "all ranks"
        if ranks == "all"
        else "two ranks"
        if "+" in ranks
        else "rank 0"
        if ranks == "0"
        else "another rank"
    )


def whom(record: Record) -> list[str]:
    """Victims, each once."""
    return list(dict.fromkeys(map(who, record.facts["entries"])))


def by(
    name: str, label: str, labels: Callable[[Record], Iterable[str]], outcomes: Sequence[str]
) -> Callable[[TrialResults], ResultTable]:
    """Outcomes by the labels from `labels`; a run may count under several."""

    def made(results: TrialResults) -> ResultTable:
        labelled = [(each, record) for record in runs(results) for each in labels(record)]
        groups = grouped(labelled, lambda pair: pair[0])
        rows = [
            {name: each, "n": len(pairs), **_counted([record for _, record in pairs], outcomes)}
            for each, pairs in sorted(groups.items())
        ]
        columns = (
            item(name, label),
            item("n", "runs", "count"),
            *items("count", **{outcome: outcome for outcome in outcomes}),
        )
        return table(f"by_{name}", f"Runs by {label}", columns, rows)

    return made


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


def all_valid(results: TrialResults) -> Iterator[Gate]:
    """Every run is valid; otherwise names the first that is not, with the command that reruns
    it.
    """
    tried = runs(results)
    bad, first = [record for record in tried if not is_valid(record)], ""
    if bad:
        wrong = bad[0].found
        first = (
            f"; the first: {bad[0].key}: {wrong['outcome']}: {wrong['why']}: {wrong['replay']} (the"
            f" run alone: {wrong['alone']})"
        )
    yield Gate(
        "valid",
        bool(tried) and not bad,
        f"{len(tried) - len(bad)} of {plural(len(tried), 'run')} ended valid, alike and"
        f" clean{first}",
    )


def phases_hit(phases: Sequence[str], times: int, trials: int) -> GateRule:
    """A study of at least so many `trials` must have hit each of `phases` in so many runs."""

    def gate(results: TrialResults) -> Iterator[Gate]:
        if results.keys.trials >= trials:
            hit = Counter(phase for record in runs(results) for phase in phases_of(record))
            rare = [phase for phase in phases if hit[phase] < times]
            yield Gate(
                "phases",
                not rare,
                f"each phase hit in at least {plural(times, 'run')}"
                + (f"; not {', '.join(rare)}" if rare else ""),
            )

    return gate
