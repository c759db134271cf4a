"""The names that `failure.kind` takes, and where the class of each is. Names can be checked without
importing that code.
"""

from __future__ import annotations

# One class of failures/fault_kind.py each. An installed package adds its own by an entry point in
# the group `ecrl.failures` (fault_spec.FAILURES).
BUILTIN = {
    "exit": "ecrl_cli.failures.rank_faults:Exit",
    "kill": "ecrl_cli.failures.rank_faults:Kill",
    "term": "ecrl_cli.failures.supervisor_and_network_faults:Term",
    "stop": "ecrl_cli.failures.rank_faults:Stop",
    "raise": "ecrl_cli.failures.rank_faults:Raise",
    "oom": "ecrl_cli.failures.rank_faults:OutOfMemory",
    "nan": "ecrl_cli.failures.rank_faults:NotANumber",
    "slow_rank": "ecrl_cli.failures.rank_faults:SlowRank",
    "slow_disk": "ecrl_cli.failures.storage_faults:SlowDisk",
    "enospc": "ecrl_cli.failures.storage_faults:FullDisk",
    "eio": "ecrl_cli.failures.storage_faults:FailedSync",
    "corrupt": "ecrl_cli.failures.storage_faults:Corrupt",
    "readonly": "ecrl_cli.failures.storage_faults:ReadOnly",
    "partition": "ecrl_cli.failures.supervisor_and_network_faults:Partition",
    "backward": "ecrl_cli.failures.rank_faults:Backward",
    "writer": "ecrl_cli.failures.storage_faults:KilledWriter",
    "supervisor": "ecrl_cli.failures.supervisor_and_network_faults:KilledSupervisor",
}

# The others say how failures are planned, not which: config/plan_kinds.py.
FAILURE_KINDS = ("none", *BUILTIN, "mtbf", "listed")
