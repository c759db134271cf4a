"""Checks a run that was continued to a higher target: at which step, from which checkpoint, and
that nothing that was sealed before has changed.
"""

from __future__ import annotations

from itertools import pairwise

from ecrl_cli.errors import RecordError
from ecrl_cli.records.events import Attempt
from ecrl_cli.records.seal import changed_files, read_seal_file
from ecrl_cli.verify.verdict import FindingBuilder
from ecrl_cli.verify.verification_input import Case

# What a run that goes on writes anew, or adds to.
_GOES_ON = (
    "config.json",
    "environment.json",
    "supervisor.json",
    "metrics.json",
    "disk.jsonl",
    "logs/writer.log",
    ".hydra/",
)


def continued(case: Case, a: Attempt) -> bool:
    """Whether `a` completed at a target that was raised since."""
    final = case.run.logs(a.attempt).final
    return (
        a.outcome == "completed"
        and final is not None
        and final.global_step in case.run.stored.config.continued_at
    )


def check_continuations(case: Case, notes: FindingBuilder) -> None:
    """Part of records-consistent: one attempt completed at each earlier target, and the next one
    began after that step, in a later session.
    """
    for step in case.run.stored.config.continued_at:
        ends = [
            a
            for a in case.attempts
            if (final := case.run.logs(a.attempt).final)
            and final.global_step == step
            and a.outcome == "completed"
        ]
        if not ends:
            notes.missing(
                f"the run went on after step {step}, and no attempt is on record as having"
                " completed there"
            )
        elif len(ends) > 1:
            notes.broken(
                f"attempts {ends[0].attempt} and {ends[1].attempt} both completed at step {step}"
            )
    for before, after in pairwise(case.attempts):
        if not continued(case, before):
            continue
        if after.session == before.session:
            notes.broken(
                f"attempt {after.attempt} goes on after an earlier target, in the session in which"
                f" attempt {before.attempt} reached it"
            )
        final = case.run.logs(before.attempt).final
        if final and after.resumed_from_step > final.global_step:
            notes.broken(
                f"attempt {after.attempt} began after step {after.resumed_from_step}, the run had"
                f" ended at step {final.global_step}"
            )


def check_earlier_seals(case: Case, notes: FindingBuilder) -> int:
    """Part of records-sealed: what an earlier end sealed is still so, but for what the continuation
    wrote; returns how many seals were checked.
    """
    found = 0
    for step in case.run.stored.config.continued_at:
        path = case.run.layout.earlier_seal(step)
        try:
            seal = read_seal_file(path)
        except (RecordError, OSError) as error:
            notes.broken(
                f"{path.name} cannot be read:"
                f" {error.fact if isinstance(error, RecordError) else error.strerror}"
            )
            continue
        if seal is None:
            continue  # the run was killed before it sealed that end
        found += 1
        if (
            not seal.whole()
            or seal.run_id != case.run.stored.run_id
            or seal.terminal_status != "completed"
        ):
            notes.broken(f"{path.name} is not the seal of this run's end at step {step}")
        changed, gone = changed_files(case.run.layout, seal, beyond=False)
        for name in changed:
            if not name.startswith(_GOES_ON):
                notes.broken(f"changed since the end at step {step} was sealed: {name}")
        for name in gone:
            if not name.startswith(_GOES_ON):
                notes.missing(f"gone since the end at step {step} was sealed: {name}")
    return found
