"""The control of an audit: a fault that is made on purpose, so that it is known whether the
evidence would show it.

Where ECRL_CONTROL names a component, a restarted attempt leaves it out when the job loads it.
"""

from __future__ import annotations

import functools
import os
from typing import Any, Callable

from ecrl.steps import StepRecorder, quietly, recorder

CONTROL = "ECRL_CONTROL"


def leave_out(kind: Any, component: str, result: Callable[[], Any]) -> None:
    """`kind.load_state_dict` loads nothing and gives `result()` where `component` is to be left
    out.
    """
    load = kind.load_state_dict

    @functools.wraps(load)
    def loading(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = recorder() if os.environ.get(CONTROL) == component else None
        if found is None or not found.recording.attempt:
            return load(self, *args, **kwargs)

        def tell(found: StepRecorder) -> None:
            found.call("control", left_out=component)

        quietly("control", tell, found)
        return result()

    kind.load_state_dict = loading
