"""A process that has imported torch and a framework once, with the recorder in it, and forks the
ranks of a job: what a launcher does, without a minute of imports for a second of training.

Run as `python -m ecrl_cli.studies.frameworks.forked_job SCRIPT RANKS MODULE...`. Reads one JSON
object per line (arm, attempt, faults, words) and answers each with one: how the attempt ended.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from ecrl_cli.linux.pdeathsig import die_with_parent

LIMIT_S = 300.0  # of one attempt
_OTHERS_S = 1.0  # how long the other ranks may go on when one has failed, as under a launcher


def main() -> None:
    from ecrl.hooks import install

    script, ranks, *modules = sys.argv[1:]
    install()
    for name in ("torch", "torch.distributed", *modules):
        importlib.import_module(name)
    for line in sys.stdin:
        order = json.loads(line)
        sys.stdout.write(json.dumps(attempt(script, int(ranks), order)) + "\n")
        sys.stdout.flush()


def attempt(script: str, ranks: int, order: dict[str, Any]) -> dict[str, Any]:
    """All ranks once; returns the launch as arm.json has it."""
    logs = Path(order["arm"]) / f"attempt-{order['attempt']:02d}"
    logs.mkdir(parents=True)
    began, failed, hung = time.monotonic(), 0, False
    deadline, port = began + LIMIT_S, _free_port()
    alive = [_rank(script, (rank, ranks, port), order, logs) for rank in range(ranks)]
    while alive:
        if time.monotonic() > deadline:
            hung = hung or not failed
            for pid in alive:
                os.kill(pid, signal.SIGKILL)
        for pid in list(alive):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                alive.remove(pid)
                if os.waitstatus_to_exitcode(status) and not failed and not hung:
                    failed, deadline = (
                        os.waitstatus_to_exitcode(status),
                        time.monotonic() + _OTHERS_S,
                    )
        time.sleep(0.01)
    fired = any(b'"type":"strike"' in path.read_bytes() for path in logs.glob("*.jsonl"))
    ending: dict[str, Any] = (
        {"exit_code": None, "signal": -failed}
        if failed < 0
        else {"exit_code": failed, "signal": None}
    )
    if hung:
        ending = {"exit_code": None, "signal": int(signal.SIGKILL)}
    return {
        "attempt": order["attempt"],
        "seconds": time.monotonic() - began,
        "hung": hung,
        "planned": fired,
        **ending,
    }


def _rank(script: str, place: tuple[int, int, int], order: dict[str, Any], logs: Path) -> int:
    """Fork one rank; returns its process id."""
    parent, pid = os.getpid(), os.fork()
    if pid:
        return pid
    code = 1
    try:
        die_with_parent(parent)
        _become(place, order, logs)
        sys.argv = [script, *order["words"]]
        sys.path.insert(0, str(Path(script).parent))
        runpy.run_path(script, run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _become(place: tuple[int, int, int], order: dict[str, Any], logs: Path) -> None:
    rank, ranks, port = place
    output = os.open(logs / "output.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ |= {
        "ECRL_RECORD": order["arm"],
        "ECRL_ATTEMPT": str(order["attempt"]),
        "ECRL_STRIKES": json.dumps(order["strikes"]),
    }
    os.environ["ECRL_ARM_DIR"] = str(Path(order["arm"]) / "work")
    if ranks > 1:
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
        }
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
