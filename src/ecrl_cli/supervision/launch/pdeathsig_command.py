"""Children that the kernel kills when this process dies."""

from __future__ import annotations

import os
import sys

from ecrl_cli.linux import pdeathsig


def mortal_command(command: list[str], *, deaf: bool = False) -> list[str]:
    """`command`, as a child that the kernel kills when this process dies; if `deaf`, it ignores SIGTERM, SIGINT and SIGHUP.

    Costs the start of a bare interpreter, about 15 ms.
    """
    return [sys.executable, "-I", "-S", pdeathsig.__file__, str(os.getpid()), *([pdeathsig.DEAF] if deaf else []), *command]
