"""Follows the records of one run as they grow and takes their figures to its tracker:
`python -m ecrl_cli.runs.tracking.follow RUN_DIR TRACKER PLACE`.

It only reads what the run has written, in a process of its own: it can neither change nor end a
run. It ends when its standard input does, having said what is on record by then. Its place in the
records is kept in RUN_DIR/tracker/, so that each step is said once over all sessions.

A step is said when it counts: when a finished checkpoint covers it, or the run has come to its end.
Until then a restart may do it again, and no tracker can take back a value (MLflow keeps both, W&B
the first).
"""

from __future__ import annotations

import json
import math
import os
import select
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ecrl_cli.config.codec import encode, flat
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.config.trackers import TRACKERS
from ecrl_cli.errors import EcrlError, first_line
from ecrl_cli.history.load import load
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import AttemptLayout, RunLayout
from ecrl_cli.records.run_config import read_run_config
from ecrl_cli.runs.tracking.sinks import Tracker
from ecrl_cli.storage.files import write_json

EVERY_S = 1.0
FOLDER = "tracker"
FIGURES = ("goodput", "wall_s", "restarts", "replayed_steps", "committed_steps")  # of metrics.json


class Follower:
    """`place` empty: a folder in the run directory. `said`: the last step that the tracker has been
    told; `evaluated`: the last of those that were evaluated. `covered`: steps up to here count:
    infinite where nothing waits, as the tracker shows the present or no checkpoint ever comes.
    """

    def __init__(self, run: Path, name: str, place: str) -> None:
        self.layout = RunLayout(run)
        stored = read_run_config(self.layout)
        self._state = run / FOLDER / f"{name}.json"
        self._state.parent.mkdir(exist_ok=True)
        before = read_json(self._state) if self._state.exists() else {}
        self.said, self.evaluated = int(before.get("step", 0)), int(before.get("evaluated", 0))
        self._read: dict[Path, int] = {}
        # by (step, 0: of training, 1: of an evaluation): what the newest attempt logged
        self._waiting: dict[tuple[int, int], dict[str, float]] = {}
        config = {
            key: value for key, value in flat(encode(stored.config)) if value not in ("", [], {})
        }
        ident = stored.run_id[:16] + f"-{self.layout.config.stat().st_ino:x}"
        self.tracker: Tracker = TRACKERS.of(name).load()(
            place or str(run / FOLDER / name), run.name, ident, config
        )
        waits = strategy_of(stored.config).saves and not getattr(self.tracker, "LIVE", False)
        self.covered = 0.0 if waits else math.inf

    def more(self) -> None:
        """Tells the tracker the steps and evaluations that have come to count, in order, each as
        the attempt did it whose checkpoint covers it.
        """
        # The checkpoints are read first: what they cover is on record then. Rank 0's lines come
        # before the evaluations: an evaluation is recorded before the line of the next step, so
        # that none of these steps lacks its own.
        for line in self._new_lines(lambda logs: logs.checkpoints):
            if line["event"] == "committed":
                self.covered = max(self.covered, int(line["global_step"]))
        for line in self._new_lines(lambda logs: logs.rank(0)):
            self._wait(int(line["global_step"]), 0, _figures(line))
        for line in self._new_lines(lambda logs: logs.evaluations):
            figures = {f"held_out_{name}": float(value) for name, value in line["measures"].items()}
            self._wait(int(line["global_step"]), 1, figures)
        self._tell()

    def _wait(self, step: int, kind: int, figures: dict[str, float]) -> None:
        again = (step, kind) in self._waiting and self.covered == math.inf
        if step > (self.evaluated if kind else self.said) and not again:
            self._waiting[step, kind] = figures

    def _tell(self) -> None:
        for step, kind in sorted(place for place in self._waiting if place[0] <= self.covered):
            self.tracker.step(step, self._waiting.pop((step, kind)))
            if kind:
                self.evaluated = step
            else:
                self.said = step

    def _new_lines(self, of: Callable[[AttemptLayout], Path]) -> Iterator[dict[str, Any]]:
        """The whole lines that have been added to that file of any attempt; one that a process left
        torn, and another closed, is passed over.
        """
        for path in (of(self.layout.attempt(attempt)) for attempt in self.layout.attempts()):
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            for line in whole.splitlines():
                try:
                    values = json.loads(line)
                except ValueError:
                    continue
                yield values

    def end(self) -> None:
        """Tells the tracker the rest: the steps of a run that has come to its end, metrics and
        verdict, as far as they are on record.
        """
        self.more()
        if _completed(self.layout):
            self.covered = math.inf
            self._tell()
        values, words = {}, {}
        if self.layout.metrics.exists():
            metrics = read_json(self.layout.metrics)
            values = {
                key: float(metrics[key])
                for key in FIGURES
                if isinstance(metrics.get(key), int | float)
            }
            final = metrics.get("final") or {}
            values |= {
                f"final_{name}": float(final[name])
                for name in ("loss", "accuracy")
                if isinstance(final.get(name), float)
            }
            words["status"] = str(metrics.get("terminal_status"))
        if self.layout.verdict.exists():
            words["verdict"] = str(read_json(self.layout.verdict)["status"])
        self.tracker.summary(self.said, values, words)
        try:
            if (tell := getattr(self.tracker, "records", None)) is not None:
                tell(load(self.layout))
        finally:
            self.tracker.close()
        write_json(self._state, {"step": self.said, "evaluated": self.evaluated}, durable=False)


def _figures(line: dict[str, Any]) -> dict[str, float]:
    """The figures of a line of rank 0."""
    losses = line["loss"]
    loss = math.fsum(losses) / len(losses) if isinstance(losses, list) else float(losses)
    values = {
        "loss": loss,
        "step_seconds": float(line["seconds"]),
        "attempt": float(line["attempt"]),
    }
    return values | ({"learning_rate": float(line["lr"])} if line.get("lr") is not None else {})


def _completed(layout: RunLayout) -> bool:
    return (
        layout.supervisor.exists()
        and read_json(layout.supervisor).get("terminal_status") == "completed"
    )


def main(run: str, name: str, place: str) -> int:
    """0, or 1 with one line on standard output."""
    try:
        follower = Follower(Path(run), name, place)
        while not select.select([0], [], [], EVERY_S)[0] or os.read(0, 1):
            follower.more()
        follower.end()
    except Exception as error:
        sys.stdout.write(
            (error.line()[:300] if isinstance(error, EcrlError) else first_line(error)) + "\n"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
