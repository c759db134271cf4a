"""What a checkpoint costs the training: `python -m bench.stall` measures, in one run with
interleaved arms, and prints JSON.

Two DDP processes (gloo, CPU) train ResNet-18 with SGD momentum on random images. Arms: no
checkpoint (twice: the A/A control), blocking, overlapped, torch.distributed.checkpoint's async_save
(on a gloo group of its own: on the training group it deadlocks), and the naive overlapped
checkpoint as published (torch.save into memory, through a multiprocessing queue to a process that
writes). A round runs a segment of steps in each arm, the order reversed every other round; a
checkpoint is taken after a segment's first step; the steps after it that begin while its write is
in flight are the steps with a write in flight. Ratios are medians of the rounds' ratios. Absolute
numbers belong to this machine and this minute.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
import torch.nn.functional as F
from bench.goals import at_most, note
from bench.program import add_folder_option, bench_folder, show
from bench.runs import machine
from torch.nn.parallel import DistributedDataParallel
from torchvision.models import resnet18

from ecrl_cli.checkpoint.capture.train_state import TrainState
from ecrl_cli.checkpoint.format.train_document import TrainPosition
from ecrl_cli.checkpoint.strategies.strategy import StrategyInputs, make_strategy
from ecrl_cli.config.schema import CheckpointConfig, RunConfig
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.linux.unix_socket import listen
from ecrl_cli.records.events import CheckpointLine
from ecrl_cli.records.journal import Journal, read_journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import write_run_config
from ecrl_cli.records.span_clock import SpanClock

WORLD = 2
GOALS = {
    "overlapped stall / blocking stall": (0.1, 0.06),
    "overlapped stall / DCP async_save stall": (0.35, 0.3),
    "overlapped stall / memory copy": (1.5, 1.5),
    "step with a write in flight / step without": (1.15, 1.05),
}


@dataclass
class Bench:
    """One rank's training, and the seconds it measures."""

    rank: int
    batch: int
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    train_state: TrainState
    seconds: dict[str, list[float]] = field(default_factory=dict)
    global_step: int = 0

    def step(self) -> float:
        """One training step; both ranks begin it together."""
        dist.barrier()
        began = monotonic()
        self.optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(self.model(self.images), self.labels).backward()
        self.optimizer.step()
        self.global_step += 1
        return monotonic() - began

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.rank)
        self.images = torch.randn(self.batch, 3, 64, 64, generator=generator)
        self.labels = torch.randint(0, 10, (self.batch,), generator=generator)

    def note(self, name: str, seconds: float) -> None:
        self.seconds.setdefault(name, []).append(seconds)

    def progress(self) -> TrainPosition:
        return TrainPosition(self.global_step, 0, self.global_step, 1337, "")


class Sampler:
    """The cursor is the step: there is no data order here."""

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass
class Arm:
    """`save` takes a checkpoint and gives the stall in seconds; `pending`: is it in flight;
    `settle` waits until it is not.
    """

    name: str
    save: Callable[[], float]
    pending: Callable[[], bool]
    settle: Callable[[], None]


def ours(bench: Bench, root: Path, name: str, config: RunConfig | None = None) -> Arm:
    """One of ECRL's strategies, timed as its own journal says: from the end of the first barrier to
    the end of the last.
    """
    layout = RunLayout(root / name)
    config = config or config_of(name)
    spans = Journal(layout.attempt(0).spans(bench.rank))
    clock = SpanClock(spans, 0, monotonic(), "compute")
    strategy = make_strategy(StrategyInputs(config, bench.train_state, layout, 0, clock))
    strategy.prepare()

    def save() -> float:
        strategy.save(bench.progress())
        clock.switch("compute")
        if bench.rank:
            return 0.0
        return next(line.stall_s for line in reversed(lines()) if line.event == "released")

    def lines() -> tuple[CheckpointLine, ...]:
        return read_journal(layout.attempt(0).checkpoints, CheckpointLine).events

    def pending() -> bool:
        events = [line.event for line in lines()]
        return events.count("submitted") > events.count("committed")

    return Arm(name, save, pending, strategy.flush)


def dcp_async(bench: Bench, root: Path) -> Arm:
    """PyTorch's own asynchronous checkpoint (a thread per rank), as its tutorial calls it."""
    group: Any = dist.new_group(backend="gloo")
    module: Any = bench.model.module
    running: list[Any] = []

    def save() -> float:
        dist.barrier()
        began = monotonic()
        state = {"model": module.state_dict(), "optimizer": bench.optimizer.state_dict()}
        folder = root / f"dcp-{bench.global_step}"
        running.append(dcp.async_save(state, checkpoint_id=str(folder), process_group=group))
        dist.barrier()
        return monotonic() - began

    def settle() -> None:
        while running:
            running.pop().result()
        dist.barrier()
        for folder in root.glob("dcp-*") if bench.rank == 0 else ():
            shutil.rmtree(folder)

    return Arm("dcp_async", save, lambda: not running[-1].done(), settle)


def naive(bench: Bench, root: Path) -> Arm:
    """As published: rank 0 serialises into memory and puts the bytes into a queue; a spawned
    process writes and syncs.
    """
    queue: Any = None
    done: Any = None
    if bench.rank == 0:
        context = mp.get_context("spawn")
        queue, done = context.Queue(), context.Queue()
        context.Process(target=naive_writer, args=(queue, done, str(root)), daemon=True).start()
    flying: list[int] = []
    module: Any = bench.model.module

    def save() -> float:
        dist.barrier()
        began = monotonic()
        if bench.rank == 0:
            buffer = io.BytesIO()
            torch.save(
                {"model": module.state_dict(), "optimizer": bench.optimizer.state_dict()}, buffer
            )
            queue.put((bench.global_step, buffer.getvalue()))
            flying.append(bench.global_step)
        dist.barrier()
        return monotonic() - began

    def settle() -> None:
        while flying:
            done.get()
            flying.pop()

    return Arm("naive", save, lambda: done.empty(), settle)


def naive_writer(queue: Any, done: Any, root: str) -> None:
    while True:
        step, payload = queue.get()
        path = Path(root) / f"naive-{step % 2}.pt"
        with path.open("wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        done.put(step)


def config_of(strategy: str) -> RunConfig:
    return replace(
        RunConfig(), checkpoint=CheckpointConfig(strategy=strategy, keep=2, max_inflight=2)
    )


def memory_copy(bench: Bench) -> Callable[[], float]:
    """The floor: copying as many bytes by one thread into memory that has been touched."""
    nbytes = sum(source.find().nbytes for source in bench.train_state.sources())
    source, target = torch.ones(nbytes, dtype=torch.uint8), torch.zeros(nbytes, dtype=torch.uint8)

    def copy() -> float:
        dist.barrier()
        began = monotonic()
        if bench.rank == 0:
            target.copy_(source)
        return monotonic() - began

    return copy


def segment(bench: Bench, arm: Arm | None, name: str, steps: int) -> None:
    """A step, the checkpoint, steps (the mean of those with the write in flight is noted), then
    wait for the write.
    """
    bench.step()
    if arm is not None:
        bench.note(f"stall {name}", arm.save())
    times = []
    for number in range(steps - 1):
        counts = arm is None or number == 0 or (bench.rank == 0 and arm.pending())
        seconds = bench.step()
        times += [seconds] if counts else []
    bench.note(f"step {name}", statistics.mean(times))
    if arm is not None:
        arm.settle()


def begun(rank: int, root: str, batch: int) -> Bench:
    """One rank of WORLD, after its first step."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group(
        "gloo", init_method=f"file://{root}/rendezvous", rank=rank, world_size=WORLD
    )
    model = resnet18(num_classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
    bench = Bench(
        rank,
        batch,
        DistributedDataParallel(model),
        optimizer,
        TrainState(model, optimizer, scheduler, None, Sampler(), rank, WORLD),
    )
    bench.step()
    return bench


def train(rank: int, root: str, rounds: int, steps: int, batch: int) -> None:
    """One rank's whole benchmark; rank 0 leaves its seconds in `seconds.json`."""
    bench = begun(rank, root, batch)
    folder = Path(root)
    # what leaves freed memory behind (naive) stands last, so that it does not slow the arms that
    # are compared
    arms = [
        None,
        None,
        ours(bench, folder, "overlapped"),
        ours(bench, folder, "blocking"),
        dcp_async(bench, folder),
        naive(bench, folder),
    ]
    names = ["none", "none_again", "overlapped", "blocking", "dcp_async", "naive"]
    copy = memory_copy(bench)
    for number in range(rounds + 1):
        if number == 1:
            bench.seconds = {}  # the first round warms up
        order = list(zip(names, arms, strict=True))
        for name, arm in order if number % 2 else reversed(order):
            segment(bench, arm, name, steps)
        bench.note("copy", copy())
    if rank == 0:
        (Path(root) / "seconds.json").write_text(json.dumps(bench.seconds))
    dist.barrier()


def median_ratio(seconds: dict[str, list[float]], over: str, under: str) -> float:
    return statistics.median(a / b for a, b in zip(seconds[over], seconds[under], strict=True))


def summary(seconds: dict[str, list[float]], layout: RunLayout) -> dict[str, Any]:
    """The document that is printed."""
    ratios = {
        "overlapped stall / blocking stall": median_ratio(
            seconds, "stall overlapped", "stall blocking"
        ),
        "overlapped stall / DCP async_save stall": median_ratio(
            seconds, "stall overlapped", "stall dcp_async"
        ),
        "overlapped stall / memory copy": median_ratio(seconds, "stall overlapped", "copy"),
        "step with a write in flight / step without": median_ratio(
            seconds, "step overlapped", "step none"
        ),
    }
    control = {
        "A/A: step without / step without": median_ratio(seconds, "step none_again", "step none"),
        "naive stall / blocking stall": median_ratio(seconds, "stall naive", "stall blocking"),
        "DCP async_save: step in flight / step without": median_ratio(
            seconds, "step dcp_async", "step none"
        ),
        "naive: step in flight / step without": median_ratio(seconds, "step naive", "step none"),
    }
    lines = read_journal(layout.attempt(0).checkpoints, CheckpointLine).events
    received = {line.global_step: line.at for line in lines if line.event == "received"}
    durable = [line.at - received[line.global_step] for line in lines if line.event == "committed"]
    conclusive = abs(control["A/A: step without / step without"] - 1) <= 0.03
    return {
        "ratios": {name: round(value, 4) for name, value in ratios.items()},
        "goals": {
            name: at_most(ratios[name], goal) | {"aim": aim} for name, (goal, aim) in GOALS.items()
        },
        "controls": {name: round(value, 4) for name, value in control.items()},
        "conclusive": conclusive,
        "note": note(conclusive),
        "milliseconds": {
            name: round(statistics.median(values) * 1e3, 2)
            for name, values in sorted(seconds.items())
        },
        "overlapped_durable_after_ms": round(statistics.median(durable) * 1e3, 1),
        "rounds": len(seconds["copy"]),
        "machine": machine(),
    }


@contextmanager
def writers(configs: Mapping[Path, RunConfig]) -> Iterator[None]:
    """The background writers of these runs, which have no supervisor; killed on exit."""
    started = []
    try:
        for root, config in configs.items():
            layout = RunLayout(root)
            layout.logs.mkdir(parents=True)
            write_run_config(layout, config)
            with listen(layout.writer) as listener:
                module = "ecrl_cli.supervision.launch.writer_main"
                command = [sys.executable, "-m", module, str(root), str(listener.fileno())]
                started.append(subprocess.Popen(command, pass_fds=[listener.fileno()]))
        yield
    finally:
        for writer in started:
            writer.kill()
            writer.wait()


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Measure what a checkpoint costs the training; prints JSON."
    )
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=4, help="steps per segment, at least 2")
    parser.add_argument("--batch", type=int, default=36)
    add_folder_option(parser)
    options = parser.parse_args()
    with bench_folder("stall", options.folder) as root:
        folder = root / "overlapped"
        with writers({folder: config_of("overlapped")}):
            mp.spawn(train, (str(root), options.rounds, options.steps, options.batch), nprocs=WORLD)
            document = summary(json.loads((root / "seconds.json").read_text()), RunLayout(folder))
    return show("stall", document)


if __name__ == "__main__":
    sys.exit(main())
