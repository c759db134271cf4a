"""What stands in the way of each goal that is missed, as docs/costs.md shows it too."""

from __future__ import annotations

from bench.goals import Figure

# by bench and words in the figure's name
OBSTACLES: dict[tuple[str, str], str] = {
    ("stall", "blocking stall"): (
        "The stall is one copy of the state, and a blocking save has become faster; less than a"
        " copy is what `checkpoint.capture=deferred` does."
    ),
    ("deferred", "stall"): (
        "What remains of the stall, 1.8 ms, is two barriers, the generators' states and the"
        " buffers, which the next forward changes."
    ),
    ("deferred", "in flight"): (
        "On two cores the copy into the slot and the writer's hashing take turns with the two"
        " ranks."
    ),
    ("store", "O_DIRECT"): (
        "A save also copies the state into the slot and hashes every byte, on the cores for which"
        " the writing thread waits its turn."
    ),
    ("store", "torch.save"): (
        "Both wait for the same disk, whose speed wavers: 0.38 to 0.80 from hour to hour."
    ),
    ("scrub", "warm"): (
        "Copying out of the page cache takes the same cores as hashing, so the two add up."
    ),
    ("audit", "no digests"): (
        "A step takes 0.2 ms of Python: its batch, what enters the model, the loss, the settings"
        " and, twice, three generators."
    ),
    ("audit", "digests every step"): (
        "120 MB are hashed before the next step begins. Beside the next forward the line would be"
        " written after its step, so that a death takes it along, and what else writes parameters"
        " would have to wait; unchanged tensors cannot be told by `_version`, which a fused"
        " AdamW, a write to `p.data` or through numpy does not move."
    ),
    ("audit_price", "bare run"): (
        "Every arm is the job once more: its steps, its saves and its start, one after the other."
    ),
    ("audit_price", "a minute"): (
        "Each arm runs the job to its end after its deaths; a death and its restart alone take a"
        " third of that."
    ),
    ("page", "verify_one"): (
        "Start and imports alone take 0.3 s, and what is compared is read and judged too."
    ),
    ("page", "verify_seconds"): "72 runs have half a million lines and 2,300 checkpoints.",
    ("page", "report"): (
        "Each of 72 runs takes 90 ms of one core to read and fold; drawing and its imports take the"
        " rest."
    ),
    ("lines", "per second"): (
        "Two SHA-256 a line, of the line and of its sample ids, are over a third of the time,"
        " reading and parsing a fifth; start and imports, 0.3 s, weigh on short runs."
    ),
    ("lines", "(MB)"): (
        "360 bytes a line are held, digests and numbers and the spans beside them; what is worked"
        " out of each step, losses and metrics, comes on top."
    ),
    ("start", "import torch"): (
        "DDP and every optimizer import `torch._dynamo`, which takes as long as the rest of torch."
    ),
    ("spares", "resnet18"): (
        "Of 0.51 s, 0.13 go by until all ranks have met, 0.19 to load the checkpoint and 0.19 for"
        " the step itself."
    ),
    (
        "goodput",
        "bound",
    ): "Each kill takes the step it interrupts and the time until it is noticed.",
    ("every_step", "goodput"): (
        "89 MB a step have to reach the disk: where it or the cores are busy, a step waits for the"
        " slot of the one before."
    ),
}


def obstacle_to(figure: Figure) -> str:
    """What stands in the way of `figure`'s goal; empty where that is not known."""
    return next(
        (
            sentence
            for (bench, words), sentence in OBSTACLES.items()
            if bench == figure.bench and words in figure.name
        ),
        "",
    )


def obstacles_of(figures: list[Figure]) -> list[str]:
    """A line for each missed goal."""
    return [
        f"{figure.bench}, {figure.name}: {obstacle_to(figure) or 'not known'}"
        for figure in figures
        if figure.verdict == "missed"
    ]
