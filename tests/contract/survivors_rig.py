"""Real processes that train with `recovery.survivors` and die where they are told: `python -m
tests.contract.survivors_rig CASES`.

CASES: JSON, a list of {ranks, deaths: [[step, rank, n-th gradient]], lossy}. A rank keeps the name
it was launched with, and gets a new number with each attempt. Prints a JSON list: per case, by
name, the digest of a survivor's parameters, buffers and momentum, how many were left, what the last
gathering gave, and what was redone. Torch is imported once; every rank is forked from here.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import select
import signal
import sys
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ecrl_cli.linux.pdeathsig import die_with_parent
from ecrl_cli.records.heartbeat_table import HeartbeatTable
from ecrl_cli.recovery.fault_tolerant_allreduce import FaultTolerantGroup, PeersLost, group_of_one
from ecrl_cli.recovery.group_rendezvous import HeartbeatMembership
from ecrl_cli.supervision.launch.forked_ranks import load, share_memory
from ecrl_cli.supervision.launch.zygote_main import start_store

STEPS, BATCH, WIDTH = 8, 24, 64


def main(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    # DDP's constructor imports it, each forked rank anew where its parent has not
    load(("torch._dynamo",))
    share_memory()
    _, port = start_store()
    return [run(case, number, port) for number, case in enumerate(cases)]


def run(case: dict[str, Any], number: int, port: int) -> dict[str, Any]:
    board, results = HeartbeatTable.create(case["ranks"]), {}
    board.set_members(case["ranks"])
    members = [start(name, case, board, (port, number)) for name in range(case["ranks"])]
    left: dict[int, Any] = {}
    attempt, ranks = 0, dict(enumerate(members))  # by rank of the attempt
    living = dict(enumerate(members))
    while living:
        ready, _, _ = select.select([member.said for member in living.values()], [], [], 60.0)
        assert ready, f"ranks {sorted(living)} hang"
        for name, member in [
            (name, member) for name, member in living.items() if member.said in ready
        ]:
            said = os.read(member.said, 65536)
            if said.startswith(b"left"):
                left[name] = int(said.split()[1])
                continue
            del living[name]
            _, status = os.waitpid(member.pid, 0)
            if status:
                board.mark_dead(next(rank for rank, each in ranks.items() if each is member))
                left.pop(name, None)
            results[str(name)] = (
                json.loads(said)
                if said
                else {"signal": os.WTERMSIG(status), "code": os.WEXITSTATUS(status)}
            )
        if living and left.keys() == living.keys():
            assert len(set(left.values())) == 1, f"left after different steps: {left}"
            attempt, ranks = (
                attempt + 1,
                dict(enumerate(member for member in ranks.values() if member in living.values())),
            )
            left = {}
            board.clear()
            board.set_members(len(ranks))
            for rank, member in ranks.items():
                os.write(member.told, f"{attempt} {rank} {len(ranks)}\n".encode())
    board.close()
    return results


@dataclass(frozen=True)
class Member:
    pid: int
    said: int
    told: int


def start(name: int, case: dict[str, Any], board: HeartbeatTable, where: tuple[int, int]) -> Member:
    said, say = os.pipe()
    hear, told = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(said)
        die_with_parent(parent)
        faulthandler.dump_traceback_later(50, exit=True)
        try:
            os.write(
                say, json.dumps(FakeTrainer(name, case, board, where).life(say, hear)).encode()
            )
            os._exit(0)
        except BaseException as error:
            sys.stderr.write(f"rank {name}: {type(error).__name__}: {error}\n")
            os._exit(3)
    os.close(say)
    os.close(hear)
    return Member(pid, said, told)


class FakeTrainer:
    """A model with buffers and many small buckets, trained by whoever is left."""

    def __init__(
        self, name: int, case: dict[str, Any], board: HeartbeatTable, where: tuple[int, int]
    ) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.name, self.case, self.board, self.number = name, case, board, where[1]
        self.store = dist.TCPStore("127.0.0.1", where[0], is_master=False)
        blocks = [
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU())
            for _ in range(5)
        ]
        self.model = nn.Sequential(*blocks, nn.Linear(WIDTH, 10))
        self.ddp = DistributedDataParallel(
            self.model,
            process_group=group_of_one(),
            bucket_cap_mb=0.02,
            find_unused_parameters=True,
            gradient_as_bucket_view=True,
            init_sync=False,
        )
        self.ddp.register_comm_hook(None, lambda state, bucket: self.peers.hook(bucket))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.step, self.redone, self.gathered = 0, [], []

    def life(self, say: int, hear: int) -> dict[str, Any]:
        attempt, rank, ranks = 0, self.name, self.case["ranks"]
        while True:
            try:
                self.attend(attempt, rank, ranks)
                break
            except PeersLost:
                self.redone += self.peers.redone
                os.write(say, f"left {self.step}".encode())
                attempt, rank, ranks = map(int, os.read(hear, 100).split())
        state = [
            *self.model.parameters(),
            *self.model.buffers(),
            *(entry["momentum_buffer"] for entry in self.optimizer.state.values()),
        ]
        digest = hashlib.sha256(
            b"".join(tensor.detach().numpy().tobytes() for tensor in state)
        ).hexdigest()
        redone = [asdict(each) for each in self.redone]
        return {
            "digest": digest,
            "ranks": ranks,
            "gathered": self.gathered,
            "redone": redone,
            "buckets": len(self.peers.parameters),
        }

    def attend(self, attempt: int, rank: int, ranks: int) -> None:
        lossy = self.case.get("lossy", True)
        prefix = f"case{self.number}.{attempt}"
        self.peers = FaultTolerantGroup(
            self.store,
            prefix,
            rank,
            HeartbeatMembership(self.board),
            timedelta(seconds=20),
            lossy=lossy,
        )
        self.peers.form(ranks)
        while self.step < STEPS:
            self.train(self.step + 1, rank, ranks)
            self.step += 1
            self.peers.barrier()
        self.gathered = [int(row) for row in self.peers.all_gather(torch.tensor([rank]))]
        self.peers.leave()

    def train(self, step: int, rank: int, ranks: int) -> None:
        draw = torch.Generator().manual_seed(step)
        x, y = (
            torch.randn(BATCH, WIDTH, generator=draw),
            torch.randint(0, 10, (BATCH,), generator=draw),
        )
        mine = slice(rank * BATCH // ranks, (rank + 1) * BATCH // ranks)
        before = [buffer.clone() for buffer in self.model.buffers()]
        self.peers.begin(step)
        arm(
            self.model,
            [place for at, who, place in self.case["deaths"] if (at, who) == (step, self.name)],
        )
        self.optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(self.ddp(x[mine]), y[mine]).backward()
        try:
            self.peers.finish(list(self.model.buffers()))
        except PeersLost:
            for buffer, value in zip(self.model.buffers(), before, strict=True):
                buffer.copy_(value)
            raise
        self.optimizer.step()


def arm(model: nn.Module, places: list[int]) -> None:
    """Die when the `place`-th gradient of this step is there, counted in the order of the backward
    pass.
    """
    parameters = list(reversed(list(model.parameters())))
    for place in places:
        parameters[place].register_post_accumulate_grad_hook(
            lambda _: os.kill(os.getpid(), signal.SIGKILL)
        )


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))))
