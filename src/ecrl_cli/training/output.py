"""Redirects a rank's output."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def print_to(path: Path) -> None:
    """Append standard output and error to the file `path` from now on."""
    sys.stdout.flush()
    sys.stderr.flush()
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
