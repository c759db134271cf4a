"""The words allowed in records, one tuple per enumeration; any other word is an error."""

from __future__ import annotations

from ecrl_cli.records.events import CATEGORIES, CHECKPOINT_ENDS
from ecrl_cli.records.heartbeat_table import PHASES
from ecrl_cli.records.survivor_records import EFFECTS, SNAPSHOT, SURVIVED, SURVIVORS

OUTCOMES = ("running", "completed", "died", "stopped", "resized", "hung", SURVIVED)
TERMINAL_STATUSES = ("running", "completed", "stopped", "gave_up", "refused")
MEMORIES = ("", SURVIVORS, SNAPSHOT)
CHECKPOINT_EVENTS = ("submitted", "received", "released", *CHECKPOINT_ENDS, "retired", "pointer_failed")
LOST_SAMPLE_EFFECTS = EFFECTS
HANG_PHASES = PHASES

# Categories that no rank records: derived from the supervisor's record, or from which steps are replayed.
DERIVED = ("launch", "detect", "replay")
RANK_CATEGORIES = tuple(category for category in CATEGORIES if category not in DERIVED)

TARGET_REACHED = "target reached"  # the reason of every completed run
