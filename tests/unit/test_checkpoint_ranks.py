"""Two ranks: each gets its own generators and line chain back, gathered by one collective and
written by rank 0 alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from ecrl_cli.checkpoint.format.manifest import components
from ecrl_cli.checkpoint.store.integrity import verify_checkpoint
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import write_run_config
from tests.unit.checkpoint_support import writer_process
from tests.unit.test_checkpoint_train_state import Run, config, strategy_of

RANK = """
import json, random, sys
from pathlib import Path
import numpy as np, torch, torch.distributed as dist
from tests.unit.test_checkpoint_train_state import Run, config, strategy_of
folder, rank, names = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
def draws():
    plain = [random.random(), random.gauss(0, 1), float(np.random.normal())]
    return [*plain, float(torch.rand(())), torch.randn(3).tolist()]
def there_and_back(root, name):
    run = Run(seed=7)
    run.train_state.rank, run.train_state.world_size = rank, 2
    run.train(3)
    random.seed(rank); np.random.seed(rank); torch.manual_seed(rank)
    draws()  # the second Gaussian of a pair is kept by then
    strategy = strategy_of(run, root, config(name))
    strategy.save(run.progress(str(rank) * 64))
    digests = run.train_state.digests()
    strategy.flush()
    expected = draws()
    dist.barrier()
    if rank == 0:
        from ecrl_cli.checkpoint.store.store import CheckpointStore
        report = CheckpointStore(root / "checkpoints").newest_valid().report
        chosen = [str(report.path), report.commit_sha256]
    else:
        chosen = [None, None]
    dist.broadcast_object_list(chosen)
    other = Run(seed=55)
    other.train_state.rank, other.train_state.world_size = rank, 2
    progress = other.train_state.restore(Path(chosen[0]), chosen[1])
    (root / f"rank{rank}.json").write_text(json.dumps(
        {"equal": draws() == expected, "chain": progress.line_chain,
         "rng": digests.rng, "again": other.train_state.digests().rng != "", "first": expected[0]}))
    strategy.close()
for name in names:
    there_and_back(folder / name, name)
dist.destroy_process_group()
"""
STRATEGIES = ("blocking", "overlapped")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory for each strategy, all by one pair of ranks: importing torch takes them
    longest.
    """
    folder = tmp_path_factory.mktemp("ranks")
    with ExitStack() as writers:
        for strategy in STRATEGIES:
            layout = RunLayout(folder / strategy)
            layout.root.mkdir()
            write_run_config(layout, config(strategy))
            writers.enter_context(writer_process(layout))
        command = [sys.executable, "-W", "ignore", "-c", RANK, str(folder)]
        ranks = [
            subprocess.Popen([*command, str(rank), *STRATEGIES], cwd=Path(__file__).parents[2])
            for rank in (0, 1)
        ]
        try:
            assert [rank.wait(120) for rank in ranks] == [0, 0]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    return folder


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_rank_gets_its_own_generators_and_chain_back(saved: Path, strategy: str) -> None:
    root = saved / strategy
    told = [json.loads((root / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    assert [each["equal"] for each in told] == [True, True]
    assert [each["chain"] for each in told] == ["0" * 64, "1" * 64]
    assert told[0]["first"] != told[1]["first"]
    report = verify_checkpoint(root / "checkpoints" / "step_00000003")
    assert report.manifest is not None and report.manifest.world_size == 2
    assert told[0]["rng"] == told[1]["rng"] == components(report.manifest).rng
    names = {
        name
        for part in report.manifest.parts.values()
        for name in part.tensors
        if name.startswith("rng.")
    }
    assert names == {
        f"rng.rank{rank}.{kind}" for rank in (0, 1) for kind in ("python", "numpy", "torch")
    }


def test_generators_that_all_ranks_share_are_kept_once_and_given_to_any_rank(
    tmp_path: Path,
) -> None:
    """With fixed replicas: what a checkpoint holds of them has no name of a rank, and one that was
    never there gets them too.
    """
    run, other = Run(seed=7), Run(seed=55)
    run.train_state.shared_rng = other.train_state.shared_rng = True
    run.train(3)
    strategy = strategy_of(run, tmp_path, config())
    strategy.save(run.progress())
    digests, expected = run.train_state.digests(), float(torch.rand(()))
    strategy.close()
    path = tmp_path / "checkpoints" / "step_00000003"
    report = verify_checkpoint(path)
    assert report.manifest is not None and report.commit_sha256 is not None
    names = {
        name
        for part in report.manifest.parts.values()
        for name in part.tensors
        if name.startswith("rng.")
    }
    assert names == {f"rng.shared.{kind}" for kind in ("python", "numpy", "torch")}
    assert components(report.manifest) == digests
    other.train_state.rank, other.train_state.world_size = 3, 4
    other.train_state.restore(path, report.commit_sha256)
    assert float(torch.rand(())) == expected
