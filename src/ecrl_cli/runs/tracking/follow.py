"""Follows the records of one run as they grow and takes their figures to its tracker:
`python -m ecrl_cli.runs.tracking.follow RUN_DIR TRACKER PLACE`.

It only reads what the run has written, in a process of its own: it can neither change nor end a run. It ends when its standard input does, having
said what is on record by then. Its place in the records is kept in RUN_DIR/tracker/, so that each step is said once over all sessions.
"""

from __future__ import annotations

import json
import math
import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ecrl_cli.config.codec import encode, flat
from ecrl_cli.config.trackers import TRACKERS
from ecrl_cli.errors import EcrlError, first_line
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import read_run_config
from ecrl_cli.runs.tracking.sinks import Tracker
from ecrl_cli.storage.files import write_json

EVERY_S = 1.0
FOLDER = "tracker"
FIGURES = ("goodput", "wall_s", "restarts", "replayed_steps", "committed_steps")  # of metrics.json


class Follower:
    """`place` empty: a folder in the run directory. `said`: the last step that the tracker has been told."""

    def __init__(self, run: Path, name: str, place: str) -> None:
        self.layout = RunLayout(run)
        stored = read_run_config(self.layout)
        self._state = run / FOLDER / f"{name}.json"
        self._state.parent.mkdir(exist_ok=True)
        self.said = int(read_json(self._state)["step"]) if self._state.exists() else 0
        self._read: dict[Path, int] = {}
        self._time: float | None = None
        config = {key: value for key, value in flat(encode(stored.config)) if value not in ("", [], {})}
        ident = stored.run_id[:16] + f"-{self.layout.config.stat().st_ino:x}"
        self.tracker: Tracker = TRACKERS.of(name).load()(place or str(run / FOLDER / name), run.name, ident, config)

    def more(self) -> None:
        """Tells the tracker the steps that have come since; a step that is done again is not said again."""
        for line in self._new_lines():
            step, losses = int(line["global_step"]), line["loss"]
            if step <= self.said:
                continue
            loss = math.fsum(losses) / len(losses) if isinstance(losses, list) else float(losses)
            values = {"loss": loss, "step_seconds": float(line["seconds"]), "attempt": float(line["attempt"])}
            if line.get("lr") is not None:
                values["learning_rate"] = float(line["lr"])
            self.tracker.step(step, values)
            self.said = step

    def _new_lines(self) -> Iterator[dict[str, Any]]:
        """The whole lines that rank 0 has added in any attempt."""
        for path in (self.layout.attempt(attempt).rank(0) for attempt in self.layout.attempts()):
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            yield from (json.loads(line) for line in whole.splitlines())

    def end(self) -> None:
        """Tells the tracker the rest: metrics and verdict, as far as they are on record."""
        self.more()
        values, words = {}, {}
        if self.layout.metrics.exists():
            metrics = read_json(self.layout.metrics)
            values = {key: float(metrics[key]) for key in FIGURES if isinstance(metrics.get(key), int | float)}
            final = metrics.get("final") or {}
            values |= {"final_loss": float(final["loss"])} if isinstance(final.get("loss"), float) else {}
            words["status"] = str(metrics.get("terminal_status"))
        if self.layout.verdict.exists():
            words["verdict"] = str(read_json(self.layout.verdict)["status"])
        self.tracker.summary(self.said, values, words)
        self.tracker.close()
        write_json(self._state, {"step": self.said}, durable=False)


def main(run: str, name: str, place: str) -> int:
    """0, or 1 with one line on standard output."""
    try:
        follower = Follower(Path(run), name, place)
        while not select.select([0], [], [], EVERY_S)[0] or os.read(0, 1):
            follower.more()
        follower.end()
    except Exception as error:
        sys.stdout.write((error.line()[:300] if isinstance(error, EcrlError) else first_line(error)) + "\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
