"""Real processes that train with `recovery.survivors` and die where they are told: `python -m tests.contract.survivors_rig CASES`.

CASES: JSON, a list of {ranks, deaths: [[step, rank, n-th gradient]]}. Prints a JSON list: per case, by surviving rank, the digest of its
parameters and momentum, who was left, and what was redone. Torch is imported once; every rank is forked from here.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import select
import signal
import sys
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.nn.parallel import DistributedDataParallel

from ecrl_cli.records.board import Board
from ecrl_cli.recovery.membership import BoardMembership
from ecrl_cli.recovery.survivors import Survivors, group_of_one
from ecrl_cli.supervision.zygote_main import start_store
from ecrl_cli.training.mortal import die_with_parent

STEPS, BATCH, WIDTH = 8, 24, 64


def main(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    port = start_store()
    return [run(case, number, port) for number, case in enumerate(cases)]


def run(case: dict[str, Any], number: int, port: int) -> dict[str, Any]:
    board, results = Board.create(case["ranks"]), {}
    board.admit(case["ranks"])
    pipes = {rank: start(rank, case, board, (port, number)) for rank in range(case["ranks"])}
    waiting = {os.pidfd_open(pid): rank for rank, (pid, _) in pipes.items()}
    while waiting:
        ready, _, _ = select.select(list(waiting), [], [], 60.0)
        assert ready, f"ranks {sorted(waiting.values())} hang"
        for fd in ready:
            rank = waiting.pop(fd)
            os.close(fd)
            said = os.read(pipes[rank][1], 65536)
            _, status = os.waitpid(pipes[rank][0], 0)
            if status:
                board.bury(rank)
            results[str(rank)] = json.loads(said) if said else {"signal": os.WTERMSIG(status), "code": os.WEXITSTATUS(status)}
    board.close()
    return results


def start(rank: int, case: dict[str, Any], board: Board, where: tuple[int, int]) -> tuple[int, int]:
    read, write = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        die_with_parent(parent)
        faulthandler.dump_traceback_later(50, exit=True)
        try:
            os.write(write, json.dumps(train(rank, case, board, where)).encode())
            os._exit(0)
        except BaseException as error:
            sys.stderr.write(f"rank {rank}: {type(error).__name__}: {error}\n")
            os._exit(3)
    os.close(write)
    return pid, read


def train(rank: int, case: dict[str, Any], board: Board, where: tuple[int, int]) -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    store = PrefixStore(f"case{where[1]}", dist.TCPStore("127.0.0.1", where[0], is_master=False))
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU()) for _ in range(5)]
    model = nn.Sequential(*blocks, nn.Linear(WIDTH, 10))
    alone = group_of_one(store, rank)
    ddp = DistributedDataParallel(
        model, process_group=alone, bucket_cap_mb=0.02, find_unused_parameters=True, gradient_as_bucket_view=True, init_sync=False
    )
    survivors = Survivors(store, rank, BoardMembership(board), timedelta(seconds=20))
    survivors.attach(ddp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    redone, gathered = [], []
    for step in range(1, STEPS + 1):
        sharing = survivors.begin(step)
        draw = torch.Generator().manual_seed(step)
        x, y = torch.randn(BATCH, WIDTH, generator=draw), torch.randint(0, 10, (BATCH,), generator=draw)
        mine = slice(sharing.index(rank) * BATCH // len(sharing), (sharing.index(rank) + 1) * BATCH // len(sharing))
        arm(model, [place for at, who, place in case["deaths"] if (at, who) == (step, rank)])
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(ddp(x[mine]), y[mine]).backward()
        redone += [asdict(each) for each in survivors.finish()]
        optimizer.step()
        gathered = [int(row) for row in survivors.all_gather(torch.tensor([rank]))]
    state = [*model.parameters(), *(entry["momentum_buffer"] for entry in optimizer.state.values())]
    digest = hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in state)).hexdigest()
    return {"digest": digest, "left": list(survivors.alive), "gathered": gathered, "redone": redone, "buckets": len(survivors.parameters)}


def arm(model: nn.Module, places: list[int]) -> None:
    """Die when the `place`-th gradient of this step is there, counted in the order of the backward pass."""
    parameters = list(reversed(list(model.parameters())))
    for place in places:
        parameters[place].register_post_accumulate_grad_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))))
