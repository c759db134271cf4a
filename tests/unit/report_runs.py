"""Synthetic run directories for the report's tests: what a finished run leaves behind, simulated on
a clock of its own.
"""

from __future__ import annotations

import csv
import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ecrl_cli.config.codec import encode
from ecrl_cli.config.schema import (
    CheckpointConfig,
    DatasetConfig,
    FailureConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    ScaleConfig,
    ScheduleConfig,
    VariantConfig,
    WriteModeConfig,
)
from ecrl_cli.history.load import load
from ecrl_cli.metrics.document import metrics_document
from ecrl_cli.records.events import (
    CATEGORIES,
    Attempt,
    CheckpointLine,
    FinalState,
    InjectedFault,
    RankLine,
    ResumedFrom,
    Span,
    SupervisorRecord,
    SupervisorSession,
)
from ecrl_cli.records.journal import line_of, read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import store, write_run_config
from ecrl_cli.records.verdict_file import verdict_file
from ecrl_cli.report.model.comparison import Comparison, compare
from ecrl_cli.report.model.inputs import run_inputs
from ecrl_cli.report.model.run_record import read_run
from ecrl_cli.storage import files

STARTING = {"launch": 0.3, "import": 0.4, "rendezvous": 0.1, "load": 0.1, "warm_up": 0.2}
STALL = {
    "blocking": {"snapshot": 0.006, "serialize": 0.02, "write_wait": 0.09},
    "overlapped": {"snapshot": 0.006, "enqueue": 0.001},
}
DETECT = 0.08
WALL_0 = 1_790_000_000.0
SEEDS = (1337, 2027, 4242)
NOISE = (1.005, 0.99, 1.0)  # of ref2 against ref, seed by seed
WALLS = {"clean": 8.0, "ref": 10.0, "ref2": 10.0, "blk": 20.0, "ovl": 16.0}
ENVIRONMENT = {
    "python": "3.11.7",
    "cpu": {"model": "a processor", "logical": 2},
    "packages": {"torch": "2.15.0"},
    "gpus": [],
    "git_revision": "a1",
}

GIVEN = False  # metrics.json is what the simulation says; else what the records fold to
write_json = partial(files.write_json, durable=False)  # no test of a report loses power


@dataclass
class Plan:
    """What to simulate. `kills` are the global steps after which a rank dies."""

    variant: str = "blk"
    suite: str = "digits-cnn-kill"
    seed: int = 1337
    steps: int = 60
    every: int = 10
    kills: tuple[int, ...] = (24, 45)
    strategy: str = "blocking"
    step_s: float = 0.05
    verdict: str | None = "valid"
    inflight: int = 4
    scale: str = "smoke"
    model: str = "small_cnn"
    dataset: str = "digits"
    write_mode: str = "atomic_dirsync"
    schedule: str = "none"
    optimizer: str = "sgd"


def arms(suite: str = "digits-cnn-kill", seed: int = 1337, steps: int = 60) -> list[Plan]:
    """The four arms of one cell."""
    shared: dict[str, Any] = {
        "suite": suite,
        "seed": seed,
        "steps": steps,
        "every": max(2, steps // 6),
    }
    return [
        Plan("clean", kills=(), strategy="none", **shared),
        Plan("ref", kills=(), **shared),
        Plan("blk", **shared),
        Plan("ovl", strategy="overlapped", **shared),
    ]


def config_of(plan: Plan) -> RunConfig:
    struck = FailureConfig("kill", plan.kills, 1) if plan.kills else FailureConfig()
    return RunConfig(
        seed=plan.seed,
        target_steps=plan.steps,
        suite_name=plan.suite,
        failure=struck,
        checkpoint=CheckpointConfig(
            strategy=plan.strategy, every=plan.every, max_inflight=plan.inflight
        ),
        variant=VariantConfig(plan.variant, bool(plan.kills)),
        scale=ScaleConfig(plan.scale),
        model=ModelConfig(plan.model),
        dataset=DatasetConfig(plan.dataset),
        write_mode=WriteModeConfig(
            plan.write_mode, sync_directories=plan.write_mode == "atomic_dirsync"
        ),
        schedule=ScheduleConfig(plan.schedule),
        optimizer=OptimizerConfig(plan.optimizer),
    )


@dataclass
class Simulation:
    """One run on its own clock; `write` leaves the run directory."""

    plan: Plan
    now: float = 1000.0
    attempts: list[Attempt] = field(default_factory=list)
    spans: dict[int, list[Span]] = field(default_factory=dict)
    ranks: dict[int, list[RankLine]] = field(default_factory=dict)
    saves: dict[int, list[CheckpointLine]] = field(default_factory=dict)
    fired: list[InjectedFault] = field(default_factory=list)
    seen: int = 0
    durable: int = 0

    def __post_init__(self) -> None:
        self.noise = random.Random(f"{self.plan.variant} {self.plan.seed} {self.plan.suite}")
        self.started = self.now
        for attempt in range(len(self.plan.kills) + 1):
            self._attempt(attempt, (*self.plan.kills, None)[attempt])
        self.ended = self.now

    def _spend(self, attempt: int, category: str, seconds: float, step: int) -> None:
        start, self.now = self.now, self.now + seconds
        self.spans.setdefault(attempt, []).append(Span(category, start, self.now, attempt, step))

    def _attempt(self, number: int, kill: int | None) -> None:
        launched, resumed = self.now, self.durable
        source = (
            ResumedFrom(f"checkpoints/step_{resumed:08d}", _hex(f"commit {resumed}"))
            if resumed
            else None
        )
        self.now += STARTING["launch"]
        for category in ("import", "rendezvous", "load"):
            self._spend(number, category, STARTING[category], 0)
        for step in range(resumed + 1, self.plan.steps + 1):
            self._step(number, step, first=step == resumed + 1)
            if step == kill:
                self.fired.append(
                    InjectedFault(
                        len(self.fired), "kill", 1, step, number, self.now, WALL_0 + self.now
                    )
                )
                break
        died = kill is not None
        self.attempts.append(
            Attempt(
                number,
                2,
                signal=9 if died else None,
                exit_code=None if died else 0,
                rank=1 if died else None,
                outcome="died" if died else "completed",
                resumed_from_step=resumed,
                resumed_from=source,
                first_step=resumed + 1,
                last_step=kill if died else self.plan.steps,
                phases={**STARTING, "detect": DETECT * (number > 0)},
                launched_at=launched,
                ended_at=self.now + DETECT * died,
            )
        )
        self.now += DETECT * died

    def _step(self, attempt: int, step: int, *, first: bool) -> None:
        again = step <= self.seen
        seconds = self.plan.step_s * self.noise.uniform(0.95, 1.05)
        if first:
            self._spend(attempt, "warm_up", STARTING["warm_up"], 0)
        self._spend(attempt, "replay" if again else "compute", seconds, step)
        self._spend(attempt, "replay" if again else "sync", 0.002, step)
        self.seen = max(self.seen, step)
        loss = 2.3 * 0.97**step + 0.1 * random.Random(f"{self.plan.seed} {step}").random()
        self.ranks.setdefault(attempt, []).append(
            RankLine(
                step,
                0,
                step - 1,
                0,
                2,
                _hex(f"ids {step}"),
                128,
                loss,
                attempt,
                seconds,
                self.now,
                WALL_0 + self.now,
            )
        )
        if self.plan.strategy != "none" and (
            step % self.plan.every == 0 or step == self.plan.steps
        ):
            self._save(attempt, step)

    def _save(self, attempt: int, step: int) -> None:
        stall = STALL[self.plan.strategy]
        shared: dict[str, Any] = {
            "global_step": step,
            "attempt": attempt,
            "time": WALL_0 + self.now,
        }
        lines = self.saves.setdefault(attempt, [])
        for category, seconds in stall.items():
            self._spend(attempt, category, seconds, step)
        lines.append(
            CheckpointLine(
                "submitted",
                at=self.now,
                snapshot_s=stall["snapshot"],
                serialize_s=stall.get("serialize", 0.0),
                bytes=89_400_000,
                **shared,
            )
        )
        lines.append(CheckpointLine("received", at=self.now, **shared))
        lines.append(
            CheckpointLine(
                "released",
                at=self.now,
                stall_s=sum(stall.values()),
                enqueue_s=stall.get("enqueue", 0.0),
                **shared,
            )
        )
        write = 0.0 if self.plan.strategy == "blocking" else 0.12
        struck = step + 1 in self.plan.kills and self.plan.strategy == "overlapped"
        if struck:
            lines.append(
                CheckpointLine(
                    "lost", at=self.now + write, reason="its writer was fenced", **shared
                )
            )
            return
        commit = _hex(f"commit {step}")
        lines.append(
            CheckpointLine(
                "committed",
                at=self.now + write,
                write_s=0.09,
                commit_s=0.004,
                commit_sha256=commit,
                path=f"step_{step:08d}",
                **shared,
            )
        )
        self.durable = step

    def seconds(self) -> dict[str, float]:
        """Seconds by category, the rest of the wall time as the residual."""
        sums = dict.fromkeys(CATEGORIES, 0.0)
        for span in (s for spans in self.spans.values() for s in spans):
            sums[span.category] += span.end - span.start
        sums["launch"] += STARTING["launch"] * len(self.attempts)
        sums["detect"] += DETECT * len(self.plan.kills)
        return {**sums, "residual": self.ended - self.started - sum(sums.values())}

    def checkpoints(self) -> dict[str, Any]:
        lines = [line for saved in self.saves.values() for line in saved]
        counts: dict[str, Any] = {
            name: sum(line.event == name for line in lines)
            for name in ("submitted", "committed", "failed", "lost")
        }
        sums = {
            key: sum(getattr(line, key) for line in lines)
            for key in (
                "snapshot_s",
                "serialize_s",
                "enqueue_s",
                "backpressure_s",
                "write_s",
                "stall_s",
            )
        }
        return {**counts, "bytes": sum(line.bytes for line in lines), **sums}

    def metrics(self) -> dict[str, Any]:
        plan, stored = self.plan, store(config_of(self.plan))
        wall = self.ended - self.started
        replayed = sum(len(lines) for lines in self.ranks.values()) - plan.steps
        digests = {
            name: _hex(f"{name} {plan.seed}")
            for name in ("parameters_digest", "buffers_digest", "optimizer_digest")
        }
        return {
            "schema_version": 1,
            "run_id": stored.run_id,
            "reference_id": stored.reference_id,
            "suite": plan.suite,
            "variant": plan.variant,
            "seed": plan.seed,
            "scale": plan.scale,
            "dataset_size": 1797,
            "steps_per_epoch": 7,
            "global_batch": 256,
            "target_steps": plan.steps,
            "committed_steps": plan.steps,
            "replayed_steps": replayed,
            "restarts": len(plan.kills),
            "wall_s": wall,
            "goodput": plan.steps / wall,
            "goodput_published_clock": plan.steps / (wall - 1),
            "seconds": self.seconds(),
            "checkpoints": self.checkpoints(),
            "final": {"global_step": plan.steps, **digests, "loss": 0.25},
            "mean_loss": {
                str(line.global_step): line.loss for lines in self.ranks.values() for line in lines
            },
        }

    def write(self, folder: Path) -> Path:
        """The run directory `folder`."""
        layout = RunLayout(folder)
        layout.fired.mkdir(parents=True)
        write_run_config(layout, config_of(self.plan))
        write_json(layout.supervisor, encode(self.supervisor(folder)))
        write_json(layout.environment, ENVIRONMENT)
        write_json(layout.failures, [])
        write_json(
            layout.dataset, {"name": "digits", "size": 1797, "classes": 10, "shape": [1, 8, 8]}
        )
        for fired in self.fired:
            write_json(layout.fired_entry(fired.index), encode(fired))
        for number in range(len(self.attempts)):
            paths = layout.attempt(number)
            paths.folder.mkdir(parents=True)
            for rank in (0, 1):
                paths.rank(rank).write_bytes(
                    b"".join(
                        line_of(replace(line, rank=rank)) for line in self.ranks.get(number, [])
                    )
                )
            paths.spans(0).write_bytes(b"".join(map(line_of, self.spans.get(number, []))))
            paths.checkpoints.write_bytes(b"".join(map(line_of, self.saves.get(number, []))))
        write_json(layout.attempt(len(self.attempts) - 1).final, encode(self.final()))
        write_json(layout.metrics, self.metrics() if GIVEN else metrics_document(load(layout)))
        if self.plan.verdict:
            judged(layout, verdict(self.plan.verdict))
        return folder

    def final(self) -> FinalState:
        a, b, c, d = (
            _hex(f"{name} {self.plan.seed}")
            for name in ("parameters_digest", "buffers_digest", "optimizer_digest", "rng_digest")
        )
        return FinalState(
            self.plan.steps,
            len(self.attempts) - 1,
            self.ended,
            WALL_0 + self.ended,
            a,
            b,
            c,
            d,
            loss=0.25,
        )

    def supervisor(self, folder: Path) -> SupervisorRecord:
        # no two runs began at once
        began = WALL_0 + self.started + random.Random(f"{self.plan} {folder}").randrange(10**6)
        session = SupervisorSession(self.started, began, "boot", self.ended)
        run_id = store(config_of(self.plan)).run_id
        return SupervisorRecord(
            1,
            run_id,
            self.plan.steps,
            "completed",
            len(self.plan.kills),
            tuple(self.attempts),
            (session,),
            "target reached",
        )


def verdict(status: str) -> dict[str, Any]:
    """A verdict.json of `status`, with one finding of that status and one that holds."""
    findings = [
        {
            "promise": "exactly-once",
            "status": "valid",
            "message": "60 steps, 0 duplicates, 0 missing, 0 extra",
            "evidence": [],
        },
        {
            "promise": "same-trajectory",
            "status": status,
            "message": f"the comparison is {status}",
            "evidence": ["losses of 60 steps", "4 digests"],
        },
    ]
    return {
        "schema_version": 1,
        "status": status,
        "run": "run",
        "run_id": "",
        "reference": "ref",
        "findings": findings,
    }


def judged(layout: RunLayout, document: dict[str, Any]) -> None:
    """Let `document` be the verdict on the run as it is now."""
    write_json(
        layout.verdict,
        verdict_file(
            layout,
            document,
            None,
            read_json(layout.divergence) if layout.divergence.exists() else None,
        ),
    )


def judged_again(layout: RunLayout) -> None:
    """The same verdict on the run as it is now."""
    if layout.verdict.exists():
        judged(layout, read_json(layout.verdict))


def edit(path: Path, **changes: Any) -> None:
    """Change fields of a document of a run that is judged as before; of verdict.json, the
    status.
    """
    layout = RunLayout(path.parent)
    if path == layout.verdict:
        judged(layout, verdict(changes["status"]))
        return
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}))
    judged_again(layout)


def make_run(folder: Path, plan: Plan | None = None) -> Path:
    """One run directory."""
    return Simulation(plan or Plan()).write(folder)


def make_sweep(folder: Path, plans: list[Plan]) -> Path:
    """A sweep folder with its manifest and a run directory per plan."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for plan in plans:
        name = f"{plan.suite}-{plan.variant}-s{plan.seed}".translate(str.maketrans("/<>", "_()"))
        make_run(folder / name, plan)
        rows.append(
            {
                "run": name,
                "run_id": store(config_of(plan)).run_id,
                "suite": plan.suite,
                "variant": plan.variant,
                "seed": plan.seed,
                "status": "completed",
                "reason": "",
            }
        )
    with (folder / "manifest.csv").open("w", newline="") as file:
        writer = csv.DictWriter(
            file, ["run", "run_id", "suite", "variant", "seed", "status", "reason"]
        )
        writer.writeheader()
        writer.writerows(rows)
    return folder


def compared(*folders: Path) -> Comparison:
    """The runs in `folders` as a report compares them, without writing one."""
    return compare([read_run(place) for place in run_inputs(list(folders))])


def timed(run: Path, wall_s: float) -> None:
    """Let `run` have taken `wall_s` seconds."""
    layout = RunLayout(run)
    said = read_json(layout.metrics)
    steps, seconds = said["committed_steps"], said["seconds"] | {"residual": 0.0}
    rates = {"goodput": steps / wall_s, "goodput_published_clock": steps / (0.8 * wall_s)}
    write_json(layout.metrics, said | rates | {"wall_s": wall_s, "seconds": seconds})
    judged_again(layout)


def later(run: Path, seconds: float) -> None:
    """Let `run` have been started so much later: then it is a repeat, and no copy."""
    document = read_json(run / "supervisor.json")
    document["sessions"][0]["time"] += seconds
    write_json(run / "supervisor.json", document)
    judged_again(RunLayout(run))


def full_plans(suite: str, names: Sequence[str] = tuple(WALLS)) -> list[Plan]:
    """Every arm of a suite with three seeds."""
    found = {plan.variant: plan for plan in arms(suite)}
    ref2 = Plan("ref2", suite, kills=(), steps=found["ref"].steps, every=found["ref"].every)
    return [
        Plan(**{**vars(plan), "seed": seed})
        for seed in SEEDS
        for plan in (*found.values(), ref2)
        if plan.variant in names
    ]


def full_sweep(
    folder: Path,
    suites: Sequence[str] = ("one", "two"),
    names: Sequence[str] = tuple(WALLS),
    slower: float = 1.0,
) -> Comparison:
    """Walls as WALLS says, twice as long in a second suite, a little longer with each seed; ref2
    noisy as NOISE says. `slower`: all of it.
    """
    made = [plan for suite in suites for plan in full_plans(suite, names)]
    make_sweep(folder, made)
    for plan in made:
        wall = (
            WALLS[plan.variant]
            * (1 + suites.index(plan.suite))
            * (1 + 0.01 * SEEDS.index(plan.seed))
        )
        noise = NOISE[SEEDS.index(plan.seed)] if plan.variant == "ref2" else 1.0
        timed(folder / f"{plan.suite}-{plan.variant}-s{plan.seed}", wall * noise * slower)
    return compared(folder)


def _hex(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
