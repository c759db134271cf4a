"""Recorder of the tensors that enter the model, at each outermost forward pass in training.

A job that has no DataLoader (a replay memory, batches cut out of an array) is known by them, and so
is whatever happens to a batch between its loader and the model.
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any

from ecrl.steps import quietly, recorder

_own = threading.local()


def patch_module_call(module: Any) -> None:
    """Follow `torch.nn.Module.__call__`: the outermost call of each thread, where gradients are
    computed.
    """
    original = module.Module.__call__
    compiling = compiling_test()

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling() or getattr(_own, "inside", False):
            return original(self, *args, **kwargs)
        _own.inside = True
        try:
            quietly("forward", lambda follower: follower.forward_begins(args, kwargs), recorder())
            return original(self, *args, **kwargs)
        finally:
            _own.inside = False

    module.Module.__call__ = call


def compiling_test() -> Any:
    """torch's own test of whether a function is being compiled, which its compiler knows to be
    true.
    """
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    return getattr(compiler, "is_compiling", None) or (lambda: False)
