"""What may be changed in a run's records without a word of the judge, and why: held against the
book of verdicts by test_every_field.py.

A row stands for what claims nothing, or what nothing else in the run repeats; the seal shows such a
change all the same. TOLERANCES are those that docs/decisions/cross-checks.md states.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.runs.every_field import Change

_SPANS = r"logs/attempt-N/spans_rankN\.jsonl"
_NEVER_READ = (
    "where the run is and what is trained beside it: part of no id (docs/decisions/run-id.md), and"
    " nothing is judged by it"
)


@dataclass(frozen=True)
class Free:
    """`field`: of the change, as a regular expression; `change`: of its text (`RUN FILE:LINE PLACE
    = VALUE`).
    """

    field: str
    reason: str
    change: str = ".*"

    def fits(self, change: Change) -> bool:
        return bool(
            re.fullmatch(self.field, change.field) and re.fullmatch(self.change, str(change))
        )


@dataclass(frozen=True)
class Tolerance:
    """Numbers of `field` may differ by `most`."""

    field: str
    most: float
    reason: str

    def fits(self, change: Change) -> bool:
        new, old = change.value, change.before
        numbers = all(
            isinstance(each, (int, float)) and not isinstance(each, bool) for each in (new, old)
        )
        return (
            numbers
            and abs(new - old) <= self.most
            and re.fullmatch(self.field, change.field) is not None
        )


TOLERANCES = (
    Tolerance(
        r".* (.*\.)?(at|time|timestamp|(start|end|launch)ed_(at|time))",
        0.06,
        "two clocks agree to 50 ms and a tenth of what lies between",
    ),
    Tolerance(
        r".* attempts\.\*\.hang\.waited_s", 0.06, "the text beside it says it in tenths of a second"
    ),
)

FREE = (
    Free(
        r"config\.json"
        r" config\.(run_dir|dataset\.root|dataset\.download|reference|seal(\..*)?"
        r"|checkpoint\.finite)",
        _NEVER_READ,
    ),
    Free(
        r"config\.json config\.(scale|schedule)(\..*)?",
        "a name for sizes and steps that stand beside it; compared with .hydra, which these lack",
    ),
    Free(
        r"config\.json"
        r" config\.supervision\.(writer_grace_s|master_port|disk_interval_s|scrub_every_s|grace_s"
        r"|hang_.*|start_timeout_s)",
        "how patient the supervisor was: part of no id, and may be another when the run goes on;"
        " what it says of a hang is checked",
    ),
    Free(
        r"config\.json config\.elastic\.on_indivisible",
        "what became of sizes that do not fit: only the sizes count, which are in the id",
        r".* = (\(removed\)|\"lower\")",
    ),
    Free(
        r"environment\.json (?!source_sha256$).*",
        "what the run ran on: told where it differs from the reference's; nothing in a run"
        " repeats it but the code",
    ),
    Free(
        r"divergence\.json .*",
        "written by verify itself, anew each time; the report shows it only with the verdict"
        " written with it",
    ),
    Free(
        r"supervisor\.json sessions\.\*\.code",
        "a later session may run other code: told beside the verdict",
        r"supervisor .* sessions\.1\..*",
    ),
    Free(
        r"supervisor\.json attempts\.\*\.stragglers.*",
        "a slow rank may go unreported: the supervisor looks when it gets the processor",
    ),
    Free(
        r"supervisor\.json attempts\.\*\.rank",
        "who was noticed first: of ranks that exit with errors any, and none where only the"
        " launcher tells",
        r"torch_file .* = 0|\w+ .* = (\(removed\)|null)",
    ),
    Free(
        r".*checkpoint_rankN\.jsonl failed reason",
        "the error in words; that it has the form of one is checked",
        r".* = \"E-.*",
    ),
    Free(
        r".*checkpoint_rankN\.jsonl submitted inflight",
        "what the training thread had heard of the writer, within bounds",
        r"(writer|overlapped|memory) .* = [12]",
    ),
    Free(
        r".*recovery_rankN\.jsonl redone(\.\*(\.seconds)?)?",
        "how long a survivor did again: at most the step's seconds",
    ),
    Free(
        rf"{_SPANS} (import|rendezvous) start",
        "when a rank other than 0 began: after the launch",
        r".*spans_rank[1-9]\d*\.jsonl:1 .*",
    ),
    Free(rf"{_SPANS} idle end", "when a rank was over: before its process ended"),
    Free(
        rf"{_SPANS} \(line\)",
        "the last span of a rank that died may have been open",
        r"(spares|forward|rollback|supervisor|memory) .*-0[01]/spans_rank[13]\.jsonl:(17|18|23) - ="
        r" \(removed\)",
    ),
    Free(
        rf"{_SPANS} compute global_step",
        "ahead of the first step: of none, or of the first",
        r".*-00/spans_rank\d\.jsonl:4 .* = 1",
    ),
    Free(
        r"failures\.json \*\.moment|.*launch\.json pending\.\*\.moment",
        "left out it reads as what it was",
        r".* = \(removed\)",
    ),
    Free(
        r".*(rankN\.jsonl components|restored_rankN\.json state)\.rng",
        "generators that nothing else has",
        r"(forward .*-00/rank2\.jsonl:2|forward .*/restored_rank\d\.json|rollback"
        r" .*-02/restored_rank1\.json) .* = \"[0-9a-f]{24}.*",
    ),
    Free(
        r".*rankN\.jsonl inputs_hash",
        "inputs that were computed once, and no reference to compare with",
        r"forward .*",
    ),
    Free(
        r".*/rankN\.jsonl \(line\)",
        "the last step of a rank whose end nobody saw, done again",
        r"supervisor .*-00/rank1\.jsonl:9 - = \(removed\)",
    ),
    Free(
        r"state_digests\.json digest_s",
        "how long a digest took: only the interval that follows from it counts",
        r"memory .* = 0\.0023.*",
    ),
    Free(
        r"supervisor\.json sessions\.\*\.writer_deaths",
        "as many as were killed at least, as were started at most",
        r"memory .* = 7",
    ),
    Free(
        r".*checkpoint_rankN\.jsonl \(line\)",
        "lines of different threads, exchanged: each thread's stand in order",
        r"memory .*-0(0/.*:2 - = .*released|1/.*:2 - = .*received|2/.*:4 - = .*submitted).*",
    ),
    Free(
        r"checkpoints/latest\.json \(file\)",
        "a hint that recovery does not read: it may lag where a writer died",
        r"writer .*",
    ),
    Free(
        r".*checkpoint_rankN\.jsonl \(line\)",
        "a writer that died may have removed a checkpoint and not said so",
        r"writer .*-01/.*:14 - = \(removed\)",
    ),
)


def excuse(change: Change) -> Free | Tolerance | None:
    """The row that says why `change` may go unseen; None if none does: a hole."""
    return next((row for row in (*TOLERANCES, *FREE) if row.fits(change)), None)
