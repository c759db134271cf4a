"""Promise state-consistent: ranks, checkpoints, the configured schedule and the final record agree on the training state."""

from __future__ import annotations

from ecrl_cli.verify.rank_states import check_checkpoints, check_due, check_end, check_steps, check_survivors
from ecrl_cli.verify.train_state import check_documents, check_settings
from ecrl_cli.verify.verdict import Finding, FindingBuilder
from ecrl_cli.verify.verification_input import Case

PROMISE = "state-consistent"


def state_consistent(case: Case) -> Finding:
    """Needs no reference: a difference between ranks, or from the configuration, is wrong whatever happened to the run."""
    notes = FindingBuilder(PROMISE)
    steps = check_steps(case, notes)
    lines = check_settings(case, notes)
    documents = check_documents(case, notes)
    stored = check_checkpoints(case, notes)
    ended = check_end(case, notes)
    check_survivors(case, notes)
    check_due(case, notes)
    texts = [
        f"ranks agree behind {steps} steps" + (" and at the end" if ended else ""),
        f"the learning rate on {lines} lines is the schedule's",
        f"{documents} checkpoints hold what the configuration says" + (f", {stored} of them what the ranks logged" if stored else ""),
    ]
    return notes.finding("; ".join(texts), checked=bool(steps or lines or documents or ended))
