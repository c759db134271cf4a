"""Reports which code each attempt ran, if a run continued under different code.

It changes no status: a result equal to the reference is equal whatever code computed it, and a difference is found anyway.
"""

from __future__ import annotations

from itertools import groupby

from ecrl_cli.errors import shown
from ecrl_cli.verify.verification_input import Case


def other_code(case: Case) -> tuple[str, ...]:
    """One line if the run's attempts ran different code. Empty if no session recorded its code, as in older records."""
    ran = [(a.attempt, session.code) for a in case.attempts if (session := case.run.session_of(a))]
    spans = [(code, [number for number, _ in group]) for code, group in groupby(ran, key=lambda item: item[1])]
    if len(spans) < 2:
        return ()
    texts = [f"{_attempts(numbers)} ran {f'code {shown(code[:12])}' if code else 'code that is not on record'}" for code, numbers in spans]
    return ("the run went on under other code: " + ", ".join(texts),)


def _attempts(numbers: list[int]) -> str:
    return f"attempt {numbers[0]}" if len(numbers) == 1 else f"attempts {numbers[0]} to {numbers[-1]}"
