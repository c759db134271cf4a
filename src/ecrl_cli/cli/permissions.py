"""Who may read what a command writes: whom the umask lets; nobody but the owner where a run asks for `private`. Nobody else ever writes there."""

from __future__ import annotations

import os

_OTHERS_WRITE, _OTHERS = 0o022, 0o077


def restrict(*, private: bool) -> int:
    """Sets the umask for what this process and its children write; returns the one before."""
    before = os.umask(_OTHERS)
    os.umask(_OTHERS if private else before | _OTHERS_WRITE)
    return before
