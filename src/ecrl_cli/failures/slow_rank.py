"""`slow_rank`: a rank takes longer over some steps than the others: reported, not killed."""

from __future__ import annotations

import time

from ecrl_cli.failures.fault_kind import FaultKind, InjectionContext

LASTS = 10  # steps


def blow(scene: InjectionContext) -> None:
    time.sleep(scene.entry.seconds)


STRIKE = FaultKind(f"takes {{seconds:g}} s longer over each of {LASTS} steps", ("forward",), blow, ends=False, seconds=0.05, lasts=LASTS)
