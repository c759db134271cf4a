"""Children that the kernel kills when this process dies."""

from __future__ import annotations

import os
import sys

from ecrl_cli.linux import pdeathsig


def mortal_command(command: list[str], *, deaf: bool = False) -> list[str]:
    """`command`, as a child of this process that does not outlive it; if `deaf`, SIGTERM, SIGINT and SIGHUP do nothing to it.

    Costs a bare interpreter's start, about 15 ms.
    """
    return [sys.executable, "-I", "-S", pdeathsig.__file__, str(os.getpid()), *([pdeathsig.DEAF] if deaf else []), *command]
