"""The parts that all commands share: a parser that raises ConfigError; results on standard output
and messages on standard error, control characters escaped in both, and nothing in them that GitHub
would obey; and the mode of the files that they write: by the umask, or for the owner alone with
`private`. Never writable by others.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from typing import NoReturn

from ecrl_cli.errors import ConfigError, visible


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors are raised as ConfigError."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError("arguments", message, f"`{self.prog} --help` shows examples")


def out(text: str) -> None:
    """Writes `text` to standard output; control characters within its lines are escaped."""
    sys.stdout.write(_shown(text) + "\n")


def say(text: str) -> None:
    """Writes `text` to standard error, which keeps standard output to results."""
    sys.stderr.write(_shown(text) + "\n")
    sys.stderr.flush()


_BREAK = "\N{ZERO WIDTH SPACE}"


def _shown(text: str) -> str:
    """`text` with control characters escaped. Where GitHub reads along, its workflow commands are
    broken up: what is shown here (the name of a stranger's run) may be written like one; real ones
    are written by `ci.tell`.
    """
    lines = [visible(line) for line in text.split("\n")]
    if os.environ.get("GITHUB_ACTIONS"):
        lines = [re.sub(r"^ *(?=::)|(?<=##)(?=\[)", rf"\g<0>{_BREAK}", line) for line in lines]
    return "\n".join(lines)


_OTHERS_WRITE, _OTHERS = 0o022, 0o077


def restrict(*, private: bool) -> int:
    """Sets the umask for what this process and its children write; returns the one before."""
    before = os.umask(_OTHERS)
    os.umask(_OTHERS if private else before | _OTHERS_WRITE)
    return before
