"""The ranks of a torchrun agent, forked from it: what they import, torch above all, is imported
once, by the agent, and not by each rank again.

They are forked before the agent has a thread (the store's server is one), and wait until
torch.distributed.run starts its workers. Each is then the agent's child, in a session of its own
and with the environment that the agent gives it, as the program that it would have started.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ecrl_cli.linux.clock import monotonic
from ecrl_cli.linux.pdeathsig import die_with_parent
from ecrl_cli.training.rendezvous import from_environment

POLLED_EVERY_S = 0.01


def load(modules: Iterable[str]) -> None:
    for name in modules:
        importlib.import_module(name)


def share_memory() -> None:
    """Keeps the memory pages of existing objects shared with the processes forked from now on: the
    garbage collector would write to each of them.
    """
    gc.collect()
    gc.freeze()


def leave(error: BaseException) -> NoReturn:
    """Exit with the code that a Python process would, without running the exit handlers and
    destructors of the process that this is a fork of.
    """
    code = 1
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    else:
        traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class ForkedRank:
    """A forked process that waits for its orders; what an agent uses of `subprocess.Popen`."""

    def __init__(self) -> None:
        orders, self._orders = os.pipe()
        agent = os.getpid()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._orders)
            _follow(orders, agent)
        os.close(orders)

    def start(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        """`argv`: of the program that this process takes the place of, python -u -m MODULE RUN_DIR
        ATTEMPT.
        """
        with os.fdopen(self._orders, "w") as orders:
            orders.write(json.dumps({"argv": argv[-3:], "environment": dict(environment)}) + "\n")

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """TimeoutExpired after `timeout` seconds."""
        end = monotonic() + timeout
        while (code := self.poll()) is None:
            if monotonic() > end:
                raise subprocess.TimeoutExpired(sys.executable, timeout)
            time.sleep(POLLED_EVERY_S)
        return code


def _follow(orders: int, agent: int) -> NoReturn:
    """In the forked process: wait for the orders, then be a rank to its end. Ends where the agent
    does.
    """
    try:
        os.setsid()
        die_with_parent(agent)
        with os.fdopen(orders) as pipe:
            # not to its end: the ranks forked later hold the other end too
            told: dict[str, Any] = json.loads(pipe.readline())
        os.environ.update(told["environment"])
        module, run_dir, attempt = told["argv"]
        worker = importlib.import_module(module)
        sys.exit(
            worker.run_rank(Path(run_dir), int(attempt), from_environment(os.environ), monotonic())
        )
    except BaseException as error:
        leave(error)
