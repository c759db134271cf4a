"""One rank's process: says hello, joins the group, loads, trains to the target, leaves its final state on record.

`python -m ecrl_cli.training.worker RUN_DIR ATTEMPT` under torch.distributed.run; `run_rank` in a rank forked by the zygote.
The run directory is its only argument beside the attempt: configuration and orders are read from there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ecrl_cli.records.clock import SpanClock, monotonic

STARTED = monotonic()  # before torch is imported, so that importing it is on the account

from ecrl_cli.config.codec import decode  # noqa: E402
from ecrl_cli.errors import EcrlError, StorageError  # noqa: E402 - after the first instant
from ecrl_cli.failures.inject import Injector  # noqa: E402
from ecrl_cli.records.journal import Journal, read_json  # noqa: E402
from ecrl_cli.records.launch import LaunchOrder  # noqa: E402
from ecrl_cli.records.layout import RunLayout  # noqa: E402
from ecrl_cli.records.messages import Hello, Progress, Trouble  # noqa: E402
from ecrl_cli.records.run_config import read_run_config  # noqa: E402
from ecrl_cli.training import stacks  # noqa: E402
from ecrl_cli.training.control import Control, Unattended, die_with_parent  # noqa: E402
from ecrl_cli.training.pulse import Pulse  # noqa: E402
from ecrl_cli.training.rendezvous import Rendezvous, from_environment  # noqa: E402


def run_rank(run_dir: Path, attempt: int, rendezvous: Rendezvous, started: float) -> int:
    """The whole life of a rank; gives its exit code. Expected errors are told to the supervisor in one line."""
    layout = RunLayout(run_dir)
    memory = stacks.answer()
    hello = Hello(rendezvous.rank, os.getpid(), attempt, started, stacks=memory)
    control = Control(layout, hello) if rendezvous.attended else Unattended()
    try:
        _train(layout, attempt, rendezvous, started, control)
    except (EcrlError, OSError) as raised:
        if isinstance(raised, (ConnectionError, TimeoutError)):  # of a peer, which a restart may cure
            control.trouble(_unexpected(rendezvous.rank, raised))
            raise
        error = raised if isinstance(raised, EcrlError) else StorageError.of("rank", raised.filename or run_dir, raised)
        sys.stderr.write(f"ecrl: error: {error.line()}\n")
        control.trouble(Trouble(rendezvous.rank, error.line(), error.exit_code))
        return error.exit_code
    except Exception as error:
        control.trouble(_unexpected(rendezvous.rank, error))
        raise
    finally:
        control.close()
        stacks.silence(memory)
    return 0


def _unexpected(rank: int, error: Exception) -> Trouble:
    return Trouble(rank, f"{type(error).__name__}: {error}".splitlines()[0][:500], 1)


def _train(layout: RunLayout, attempt: int, rendezvous: Rendezvous, started: float, control: Control) -> None:
    logs = layout.attempt(attempt)
    clock = SpanClock(Journal(logs.spans(rendezvous.rank)), attempt, started, "import")
    order = decode(LaunchOrder, read_json(logs.launch))
    control.attach()
    Pulse(control.board, rendezvous.rank).phase("importing")
    Injector(layout, attempt, rendezvous.rank, order.pending).at_start("start", order)
    if rendezvous.rank == 0:
        control.progress(Progress(order.resume_step, "importing", monotonic()))
    from ecrl_cli.training.session import Session  # torch: its import is a span of its own and follows the hello

    Session(read_run_config(layout).config, layout, order, rendezvous, clock, control).train()


def main(argv: list[str]) -> int:
    die_with_parent()
    return run_rank(Path(argv[0]), int(argv[1]), from_environment(os.environ), STARTED)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the destructors of a process group now and then abort a process whose work is done and on record
