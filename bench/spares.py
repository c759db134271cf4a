"""From a rank's death to the first new step: `python -m bench.spares` measures it side by side with
torch.distributed.run, and prints JSON.

Two processes (gloo, CPU, one thread each) train a model with momentum on fake images: torchvision's
ResNet-18 (89 MB of state, which ECRL hashes and a plain script does not) and a small convolutional
network (3 MB). In each run rank 1 is killed in the same step, once, and the work goes on from the
checkpoint two steps before. Arms, the order reversed every other round: `spares`
(checkpoint_restart, a warm spare takes the place), `zygote` (checkpoint_restart, all ranks forked
anew), and, twice (the A/A control),
`torchrun`: bench/plain_ddp.py, a plain script with torch.save, under `torch.distributed.run
--standalone --max-restarts`, with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, without which torchrun's
own restart now and then hangs.

Measured, on one clock, from the instant before the kill: until the death was noticed and the
attempt was over (`over`; torchrun does not say when), the next one's processes are there (`up`),
have met (`met`), have loaded (`loaded`), have done a step (`back`). Each is of the last rank to get
there, `back` of the first; of ECRL's ranks it is rank 0 that keeps the account. How long a step
takes otherwise is in `back`, and printed. Ratios are medians of the rounds' ratios. Absolute
numbers belong to this machine and this minute.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.goals import at_most, note
from bench.program import bench_folder, show
from bench.runs import deaths, first_line, machine, train

from ecrl_cli.history.load import RunRecords
from ecrl_cli.verify.verify_run import verify_run

STEPS, EVERY, DIES_AT, RANKS = 9, 4, 7, 2
ARMS = ("torchrun", "spares", "zygote", "torchrun_again")
MODELS = ("resnet18", "small_cnn")
RATIO, GOALS = "spares / torchrun", {"resnet18": 0.06, "small_cnn": 0.2}
CONCLUSIVE = 0.1  # how far two identical arms may come apart
PARTS = ("over", "up", "met", "loaded", "back")


def ours(run_dir: Path, model: str, batch: int, spares: int) -> dict[str, float]:
    workload = [
        "device=cpu",
        "dataset=fake",
        f"model={model}",
        "model.stem=imagenet",
        f"global_batch={batch}",
    ]
    workload += [f"world_size={RANKS}", f"target_steps={STEPS}"]
    how = [
        "supervision=zygote",
        f"supervision.spares={spares}",
        f"checkpoint.every={EVERY}",
        "checkpoint.final=false",
    ]
    records = train(
        run_dir, *workload, *how, "failure=listed", f"failure.entries=[kill@{DIES_AT}.forward/1:1]"
    )
    verdict = verify_run(run_dir).status
    if verdict == "invalid":
        raise RuntimeError(f"{run_dir.name}: {verdict}")
    return parts(records)


def parts(records: RunRecords) -> dict[str, float]:
    """Seconds from the kill to the end of each part of the attempt that followed it: the spans of
    its rank 0, and its first line.
    """
    (death,) = deaths(records)
    killed, attempts = death.fired.at, records.supervisor.attempts if records.supervisor else ()
    logs = records.logs(death.fired.attempt + 1)
    ends = {span.category: span.end - killed for span in logs.spans.events if span.global_step == 0}
    steps = [line.seconds for line in records.logs(0).ranks[0].events[1:]]
    found = {
        "over": (attempts[death.fired.attempt].ended_at or killed) - killed,
        "up": logs.spans.events[0].start - killed,
        "met": ends.get("rendezvous"),
        "loaded": ends.get("load"),
    }
    back = first_line(records, death.fired).at - killed
    return {name: value for name, value in found.items() if value is not None} | {
        "back": back,
        "step": statistics.median(steps),
    }


def torchrun(folder: Path, model: str, batch: int) -> dict[str, float]:
    """The peer; RuntimeError where its restart did not bring it to its end."""
    folder.mkdir()
    agent = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(RANKS),
        "--max-restarts",
        "3",
    ]
    # else in the system's folder for temporary files, for ever
    agent += ["--log-dir", str(folder / "agent")]
    script = [
        str(Path(__file__).with_name("plain_ddp.py")),
        model,
        str(folder),
        *map(str, (STEPS, EVERY, DIES_AT, batch)),
    ]
    environment = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *agent, *script],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    if done.returncode:
        raise RuntimeError(f"torchrun ended with {done.returncode}: {done.stderr[-2000:]}")
    events = [
        json.loads(line)
        for rank in range(RANKS)
        for line in (folder / f"events-{rank}.jsonl").read_text().splitlines()
    ]
    killed = next(event["at"] for event in events if event["event"] == "killed")
    began = [
        event["at"]
        for event in events
        if event["event"] == "step"
        and event["attempt"] == 0
        and event["step"] > 1
        and event["at"] < killed
    ]
    again = [event for event in events if event["attempt"] == 1]
    last = {
        name: max(e["at"] for e in again if e["event"] == name) - killed
        for name in ("started", "group", "loaded")
    }
    back = min(e["at"] for e in again if e["event"] == "step") - killed
    return {
        "up": last["started"],
        "met": last["group"],
        "loaded": last["loaded"],
        "back": back,
        "step": (max(began) - min(began)) / (DIES_AT - 3),
    }


def summary(found: dict[str, list[dict[str, float]]], goal: float) -> dict[str, Any]:
    back = {arm: [each["back"] for each in values] for arm, values in found.items()}
    ratios = {
        f"{arm} / torchrun": [a / b for a, b in zip(back[arm], back["torchrun"], strict=True)]
        for arm in ARMS
        if arm != "torchrun"
    }
    medians = {name: statistics.median(values) for name, values in ratios.items()}
    control, reached = medians.pop("torchrun_again / torchrun"), medians[RATIO]
    conclusive = abs(control - 1) <= CONCLUSIVE
    return {
        "ratios": {name: round(value, 4) for name, value in medians.items()},
        "goals": {RATIO: at_most(reached, goal)},
        "controls": {"A/A: torchrun / torchrun": round(control, 4)},
        "each_round": {
            name: [round(value, 4) for value in values] for name, values in ratios.items()
        },
        "conclusive": conclusive,
        "note": note(conclusive, CONCLUSIVE),
        "seconds_after_the_kill": {
            arm: {name: middle(values, name) for name in PARTS if name in values[0]}
            for arm, values in found.items()
        },
        "seconds_of_a_step": {arm: middle(values, "step") for arm, values in found.items()},
    }


def middle(values: list[dict[str, float]], name: str) -> float:
    return round(statistics.median(each[name] for each in values), 4)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=(
            "Measure death to first new step, warm spares against torch.distributed.run; prints"
            " JSON."
        )
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--batch", type=int, default=16, help="the global batch")
    options = parser.parse_args()
    with bench_folder("spares") as root:
        found = {
            model: summary(measured(root, model, options.rounds, options.batch), GOALS[model])
            for model in options.models
        }
    settings = {
        "ranks": RANKS,
        "global_batch": options.batch,
        "rounds": options.rounds,
        "checkpoint_every": EVERY,
        "dies_at": DIES_AT,
    }
    return show("spares", {"models": found, "settings": settings, "machine": machine()})


def measured(root: Path, model: str, rounds: int, batch: int) -> dict[str, list[dict[str, float]]]:
    """By arm, what each round gave."""
    found: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    for number in range(rounds):
        for arm in ARMS if number % 2 else reversed(ARMS):
            folder, spares = root / f"{model}-{number}-{arm}", 1 if arm == "spares" else 0
            found[arm].append(
                torchrun(folder, model, batch)
                if arm.startswith("torchrun")
                else ours(folder, model, batch, spares)
            )
            shutil.rmtree(folder)
    return found


if __name__ == "__main__":
    sys.exit(main())
