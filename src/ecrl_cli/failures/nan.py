"""`nan`: what a rank's model puts out is NaN: the loop refuses the loss before the step is logged or saved."""

from __future__ import annotations

from typing import Any

from ecrl_cli.failures.fault_kind import FaultKind, InjectionContext


def blow(scene: InjectionContext) -> Any:
    return scene.output * float("nan")


STRIKE = FaultKind("computes a NaN loss", ("forward",), blow, ends=False)
