"""Upper bounds of numbers, by field name: for user input and for records from elsewhere.

They bound every loop over steps or ranks and every array of samples, whatever a record says. The
bounds are far beyond what this tool is for; a larger number is a mistake or an attack.
"""

from __future__ import annotations

from collections.abc import Mapping

STEPS = 10**8
RANKS = 2**16
SAMPLES = 2**25  # an order of so many takes 270 MB
MOST_FAILURES = 2**14  # of a plan
MOST_ATTEMPTS = 4096  # on record
WHOLE = 2**63 - 1  # of any other whole number, either sign

LIMITS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(
        (
            "target_steps",
            "global_step",
            "first_step",
            "last_step",
            "resumed_from_step",
            "resume_step",
            "until",
        ),
        (0, STEPS),
    ),
    **dict.fromkeys(
        ("max_step_seen", "committed_steps", "replayed_steps", "at_step", "max_restarts"),
        (0, STEPS),
    ),
    **dict.fromkeys(("world_size", "ranks", "replicas", "nodes", "spares"), (0, RANKS)),
    **dict.fromkeys(("size", "dataset_size", "global_batch", "samples", "held_out"), (0, SAMPLES)),
    **dict.fromkeys(("attempt", "continues"), (-1, STEPS)),
}


def out_of_range(name: str, value: int) -> str:
    """Why `value` is out of range for the field `name`; empty if it is not."""
    low, high = LIMITS.get(name, (-WHOLE, WHOLE))
    if low <= value <= high:
        return ""
    return f"not in {low} .. {high}" if name in LIMITS else "not a number of 64 bits"
