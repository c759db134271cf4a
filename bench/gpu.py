"""What a checkpoint costs a model of a billion parameters on a GPU: `python -m bench.gpu` measures,
with interleaved arms, and prints JSON.

One process trains a transformer (bf16 parameters, fused AdamW) on random tokens. Arms: no
checkpoint (twice: the A/A control), deferred (overlapped with checkpoint.capture=deferred), the
same with capture=copy, blocking, and torch.distributed.checkpoint's async_save. Segments of steps
are as in bench.stall; a step ends when the GPU is done with it. The link is what one copy of 1 GiB
into pinned memory reaches, the capture what all tensors of the state reach together. `--race` adds
the stall of other checkpointers, after that. Needs a GPU: without one it says so and ends with 3.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from bench.deferred import both_arms, deferring, lines_of
from bench.goals import at_least, at_most, note
from bench.program import add_folder_option, bench_folder, show
from bench.runs import machine
from bench.stall import Arm, Bench, Sampler, dcp_async, median_ratio, ours, segment, writers
from torch import nn

from ecrl_cli.checkpoint.capture.shared_memory import Memory
from ecrl_cli.checkpoint.capture.staging_buffer import CapturePlanner
from ecrl_cli.checkpoint.capture.train_state import TrainState
from ecrl_cli.checkpoint.format.train_document import NOWHERE
from ecrl_cli.checkpoint.strategies.deferral_gpu import PinnedBuffer
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.records.layout import RunLayout

NO_GPU = 3
LINK_BYTES = 2**30
OTHERS = ("torch_save", "torch_save_durable", "dcp", "torch_checkpointing", "torchsnapshot")
STALL_OF_A_STEP, IN_FLIGHT, OF_THE_LINK = 0.01, 1.05, 0.8


class Transformer(nn.Module):
    """A decoder of `depth` layers of `width`, with learned positions and a head that shares
    nothing.
    """

    def __init__(self, width: int, depth: int, tokens: int, words: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(tokens, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, width // 128, 4 * width, 0.0, F.gelu, batch_first=True, norm_first=True
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """(n, tokens) to logits (n, tokens, words)."""
        x = self.words(text) + self.places.weight
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1], x.device, x.dtype)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        logits: torch.Tensor = self.head(x)
        return logits


@dataclass
class GpuBench(Bench):
    """One process's training on the GPU."""

    def __post_init__(self) -> None:
        module: Any = self.model.module
        words, tokens = module.words.num_embeddings, module.places.num_embeddings
        self.images = torch.randint(0, words, (self.batch, tokens), device="cuda")
        self.labels = torch.randint(0, words, (self.batch * tokens,), device="cuda")

    def step(self) -> float:
        began = monotonic()
        self.optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(self.model(self.images).flatten(0, 1).float(), self.labels).backward()
        self.optimizer.step()
        self.global_step += 1
        torch.cuda.synchronize()
        return monotonic() - began


class Alone(nn.Module):
    """Gives a model the name that DDP gives it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.module(x)
        return out


def begun(options: argparse.Namespace, root: Path) -> GpuBench:
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{root}/rendezvous", rank=0, world_size=1)
    with torch.device("cuda"):
        model = Transformer(options.width, options.depth, options.tokens, options.words).to(
            torch.bfloat16
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
    bench = GpuBench(
        0,
        options.batch,
        Alone(model),
        optimizer,
        TrainState(model, optimizer, scheduler, None, Sampler(), 0, 1),
    )
    for _ in range(3):
        bench.step()
    return bench


def seconds_of(copy: Callable[[], Any], times: int = 5) -> float:
    """The median of the seconds until the GPU is done with `copy`."""
    found = []
    for _ in range(times):
        torch.cuda.synchronize()
        began = monotonic()
        copy()
        torch.cuda.synchronize()
        found.append(monotonic() - began)
    return statistics.median(found[1:])


def link_bytes_per_s() -> float:
    source = torch.ones(LINK_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty(LINK_BYTES, dtype=torch.uint8, pin_memory=True)
    return LINK_BYTES / seconds_of(lambda: target.copy_(source, non_blocking=True))


def capture_bytes_per_s(bench: GpuBench) -> float:
    """Of all tensors of the state, into a staging buffer."""
    planner = CapturePlanner(bench.train_state, "")
    layout = planner.refresh(bench.train_state.gather(NOWHERE))
    slot = PinnedBuffer(Memory.create(layout.nbytes), layout, bench.train_state.device)
    tensors = {name: tensor for name, tensor in planner.found.items() if tensor.is_cuda}

    def copy() -> None:
        slot.copy_at_once({})
        slot.copy_later(tensors)

    seconds = seconds_of(copy)
    slot.close()
    return sum(tensor.nbytes for tensor in tensors.values()) / seconds


def stall_parts(root: Path, arm: str) -> dict[str, float]:
    """Of each part of a stall the median, in milliseconds."""
    found: dict[str, list[float]] = {}
    for line in lines_of(RunLayout(root / arm)):
        for name, seconds in (line.stall_parts or {}).items():
            found.setdefault(name, []).append(seconds * 1e3)
    return {name: round(statistics.median(values), 3) for name, values in sorted(found.items())}


def race(bench: GpuBench, root: Path, rounds: int) -> None:
    """Notes the stalls of OTHERS; each keeps one checkpoint at a time."""
    arms = {name: ours(bench, root, name) for name in OTHERS}
    for number in range(rounds + 1):
        for name, arm in arms.items():
            print(f"round {number}: {name}", file=sys.stderr, flush=True)
            bench.step()
            seconds = arm.save()
            arm.settle()
            if number:
                bench.note(f"stall {name}", seconds)
            for path in (root / name / "checkpoints").glob("step_*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def measure(options: argparse.Namespace, root: Path) -> dict[str, Any]:
    bench = begun(options, root)
    link, capture = link_bytes_per_s(), capture_bytes_per_s(bench)
    arms: dict[str, Arm | None] = {"none": None, "none_again": None}
    for name in ("deferred", "overlapped", "blocking"):
        arms[name] = ours(bench, root, name, deferring(name))
        bench.step()  # the step that is watched before a capture is deferred
    arms["dcp_async"] = dcp_async(bench, root)
    for number in range(options.rounds + 1):
        if number == 1:
            bench.seconds = {}  # the first round warms up
        order = list(arms.items())
        for name, arm in order if number % 2 else reversed(order):
            segment(bench, arm, name, options.steps)
            print(f"round {number}: {name}", file=sys.stderr, flush=True)
    for arm in arms.values():
        if arm is not None:
            arm.settle()
    if options.race:
        race(bench, root, options.rounds)
    seconds = bench.seconds
    copied = [
        line
        for line in lines_of(RunLayout(root / "deferred"))
        if line.event == "submitted" and not line.deferred_bytes
    ]
    assert not copied, f"{len(copied)} captures were copies: {copied[0].reason}"
    failed = [
        line.reason
        for name in ("deferred", "overlapped", "blocking")
        for line in lines_of(RunLayout(root / name))
        if line.event == "failed"
    ]
    assert not failed, failed[0]
    ratios = {
        "deferred stall / step": median_ratio(seconds, "stall deferred", "step none"),
        "step with a write in flight / step without": median_ratio(
            seconds, "step deferred", "step none"
        ),
        "capture / link": capture / link,
    }
    goals = {
        "deferred stall / step": at_most(ratios["deferred stall / step"], STALL_OF_A_STEP),
        "step with a write in flight / step without": at_most(
            ratios["step with a write in flight / step without"], IN_FLIGHT
        ),
        "capture / link": at_least(ratios["capture / link"], OF_THE_LINK),
    }
    control = {
        "A/A: step without / step without": median_ratio(seconds, "step none_again", "step none"),
        "deferred stall / blocking stall": median_ratio(
            seconds, "stall deferred", "stall blocking"
        ),
        "deferred stall / DCP async_save stall": median_ratio(
            seconds, "stall deferred", "stall dcp_async"
        ),
        "capture=copy: stall / blocking stall": median_ratio(
            seconds, "stall overlapped", "stall blocking"
        ),
        "DCP async_save: step in flight / step without": median_ratio(
            seconds, "step dcp_async", "step none"
        ),
    }
    conclusive = abs(control["A/A: step without / step without"] - 1) <= 0.03
    return {
        "parameters": sum(parameter.numel() for parameter in bench.model.parameters()),
        "state_bytes": sum(source.find().nbytes for source in bench.train_state.sources()),
        "link_gb_per_s": round(link / 1e9, 2),
        "capture_gb_per_s": round(capture / 1e9, 2),
        "ratios": {name: round(value, 4) for name, value in ratios.items()},
        "goals": goals,
        "controls": {name: round(value, 4) for name, value in control.items()},
        "conclusive": conclusive,
        "note": note(conclusive),
        "milliseconds": {
            name: round(statistics.median(values) * 1e3, 2)
            for name, values in sorted(seconds.items())
        },
        "deferred_stall_parts_ms": stall_parts(root, "deferred"),
        "rounds": len(seconds["step none"]),
        "machine": machine() | {"gpu": torch.cuda.get_device_name()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Measure what a checkpoint costs a model on a GPU; prints JSON."
    )
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=8, help="steps per segment, at least 2")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--words", type=int, default=8192)
    parser.add_argument(
        "--race", action="store_true", help="also the stalls of other checkpointers"
    )
    add_folder_option(parser)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        show("gpu", {"note": "there is no GPU: nothing was measured"})
        return NO_GPU
    with bench_folder("gpu", options.folder) as root, writers(both_arms(root)):
        document = measure(options, root)
    return show("gpu", document)


if __name__ == "__main__":
    sys.exit(main())
