"""`oom`: a rank runs out of memory: a real allocation is made to fail, and what it raises is not caught."""

from __future__ import annotations

import resource
from pathlib import Path

from ecrl_cli.failures.fault_kind import FaultKind, InjectionContext

ASKED = 2**34  # bytes; never handed out
_SPARE = 2**26  # what the process may still take: enough to say why it ends


def blow(scene: InjectionContext) -> None:
    """Raises what the allocator raises; the limit is lifted again, so that the rank can say so."""
    del scene
    # Here, where a rank strikes: the plan is made by a supervisor that has no torch.
    import torch

    if torch.cuda.memory_allocated():
        _exhaust_device()
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + _SPARE, before[1]))
    try:
        torch.empty(ASKED, dtype=torch.uint8)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _exhaust_device() -> None:
    import torch

    free, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(0.0)
    try:
        torch.empty(max(free, total), dtype=torch.uint8, device="cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


STRIKE = FaultKind("runs out of memory", ("forward", "backward", "load"), blow)
