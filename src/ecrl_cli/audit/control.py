"""The control arm: a component is left out on purpose when the job loads it, and must be missed."""

from __future__ import annotations

from collections.abc import Iterable

from ecrl_cli.audit.components import BROKEN, KEPT, UNKNOWN, ArmFinding
from ecrl_cli.audit.records import Arm

CONTROL = "control"  # the arm, and the promise that is judged by it
_WORDS = {"optimizer": "the optimizer's state", "parameters": "the parameters"}


def component_of(arms: Iterable[Arm]) -> str:
    """The part that is left out: the optimizers' state where the restarts of `arms` loaded one,
    else the parameters.
    """
    for arm in arms:
        for number, processes in arm.attempts.items():
            loads = any(
                call.get("what") == "Optimizer.load_state_dict"
                for process in processes
                for call in process.calls
            )
            held = any(process.start and process.start.get("entries") for process in processes)
            if number and loads and held:
                return "optimizer"
    return "parameters"


def control_seen(arm: Arm, findings: Iterable[ArmFinding]) -> ArmFinding:
    """Whether what was left out broke a promise. `findings`: those of the control arm."""
    left_out = {
        str(call.get("left_out"))
        for process in arm.processes
        for call in process.calls
        if call.get("what") == CONTROL
    }
    if not left_out:
        said = "nothing could be left out: no restart called load_state_dict of what is trained"
        return ArmFinding(CONTROL, UNKNOWN, said, arm.name)
    what = _WORDS.get(min(left_out), min(left_out))
    broken = [finding for finding in findings if finding.status == BROKEN]
    if not broken:
        said = (
            f"a restart without {what}, left out on purpose, broke no promise: the evidence is"
            " blind there"
        )
        return ArmFinding(CONTROL, UNKNOWN, said, arm.name)
    said = f"a restart without {what}, left out on purpose, was seen: {broken[0].message}"
    return ArmFinding(CONTROL, KEPT, said, arm.name)
