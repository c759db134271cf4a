"""The registry of checks, by promise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ecrl_cli.errors import ConfigError, EcrlError
from ecrl_cli.verify.checkpoints import (
    ACCOUNT,
    NO_BAD,
    NO_LOSS,
    checkpoints_accounted,
    no_acknowledged_loss,
    no_bad_checkpoint,
)
from ecrl_cli.verify.configuration import refusal
from ecrl_cli.verify.consistency import RECORDS, TARGET, records_consistent, target_reached
from ecrl_cli.verify.exactly_once import PROMISE as ONCE
from ecrl_cli.verify.exactly_once import exactly_once
from ecrl_cli.verify.fault_plan import PROMISE as FAILURES
from ecrl_cli.verify.fault_plan import failures_once
from ecrl_cli.verify.rest import trajectory_and_rest
from ecrl_cli.verify.same_input import PROMISE as INPUT
from ecrl_cli.verify.same_input import same_input
from ecrl_cli.verify.seal import PROMISE as SEALED
from ecrl_cli.verify.seal import records_sealed
from ecrl_cli.verify.state_consistent import PROMISE as STATE
from ecrl_cli.verify.state_consistent import state_consistent
from ecrl_cli.verify.state_restored import PROMISE as RESTORED
from ecrl_cli.verify.state_restored import state_restored
from ecrl_cli.verify.time_accounting import PROMISE as TIME
from ecrl_cli.verify.time_accounting import time_conserved
from ecrl_cli.verify.trajectory import PROMISE as TRAJECTORY
from ecrl_cli.verify.verdict import INVALID, UNKNOWN, Finding
from ecrl_cli.verify.verification_input import Case

Check = Callable[[Case], Finding]

CHECKS: dict[str, Check] = {
    ONCE: exactly_once,
    INPUT: same_input,
    TRAJECTORY: trajectory_and_rest,
    STATE: state_consistent,
    RESTORED: state_restored,
    TIME: time_conserved,
    NO_BAD: no_bad_checkpoint,
    NO_LOSS: no_acknowledged_loss,
    ACCOUNT: checkpoints_accounted,
    FAILURES: failures_once,
    RECORDS: records_consistent,
    TARGET: target_reached,
    SEALED: records_sealed,
}
# promises that are held against the reference too; the others are of the run alone
COMPARING = (INPUT, TRAJECTORY, STATE, RECORDS)
_ON_JOURNALS = (ONCE, NO_BAD, NO_LOSS, ACCOUNT)


def run_checks(
    case: Case, found: Mapping[str, Finding] = MappingProxyType({})
) -> tuple[Finding, ...]:
    """Run every check: one finding per promise. `found`: by promise, those that are known
    already.
    """
    return tuple(
        found.get(promise) or guarded(promise, check, case) for promise, check in CHECKS.items()
    )


def checks_alone(case: Case) -> dict[str, Finding]:
    """The findings, by promise, that no other run has a part in."""
    return {
        promise: guarded(promise, check, case)
        for promise, check in CHECKS.items()
        if promise not in COMPARING
    }


def _unread_journals(case: Case, finding: Finding) -> Finding:
    """The finding; unknown where it rests on checkpoint journals and one was too large to read."""
    if finding.status != INVALID or finding.promise not in _ON_JOURNALS:
        return finding
    journals = {
        case.run.layout.relative(case.run.layout.attempt(logs.attempt).checkpoints)
        for logs in case.run.attempt_logs
    }
    unread = [each for each in case.run.unread if each.too_large and each.path in journals]
    if not unread:
        return finding
    message = f"{finding.promise} - {unread[0].path} is too large to read ({unread[0].reason})"
    told = finding.message.removeprefix(f"Broke promise: {finding.promise} - ")
    return Finding(finding.promise, UNKNOWN, message, (told, *finding.evidence))


def guarded(promise: str, check: Check, case: Case) -> Finding:
    """Run one check; if it raises, its promise is unknown, with the reason. Only a configuration
    that ECRL would refuse should make one raise.
    """
    try:
        return _unread_journals(case, check(case))
    except Exception as error:
        refused = error if isinstance(error, ConfigError) else refusal(case.run.stored.config)
        if refused:
            return Finding(
                promise,
                UNKNOWN,
                f"{promise} - config.json is none that ECRL runs here: {refused.fact}",
            )
        reason = error.fact if isinstance(error, EcrlError) else f"{type(error).__name__}: {error}"
        return Finding(promise, UNKNOWN, f"{promise} - the check failed ({reason})")
