"""A recovery that silently changes the trajectory must not pass: bugs planted in the worker, found by `ecrl verify`.

A published artefact restored rank 0's generator on every rank, or restored it before building an iterator that consumed it again; its
own checks passed. Each bug below is of that kind: the sample ids stay right (but for the last one), the state does not.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import Ecrl, run_ecrl
from tests.e2e.runs import tiny

# Python reads sitecustomize.py at the start of every process; this one waits for the module and spoils it.
PLANT = """
import importlib.abc, importlib.util, sys

class Plant(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "ecrl_cli.checkpoint.state":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            spoil(module)
        spec.loader.exec_module = exec_module
        return spec

def spoil(module):
    import torch
    pack, rest, restore_rng = module.StatePack, module.StatePack._restore_rest, module.restore_rng
{body}

sys.meta_path.insert(0, Plant())
"""

BUGS = {
    "rng_not_restored": "module.restore_rng = lambda states, device: None",
    "rng_of_rank_0_for_all": """
def all_from_0(self, loaded):
    rank, self.rank = self.rank, 0
    progress = rest(self, loaded)
    self.rank = rank
    return module.Progress(progress.global_step, progress.epoch, progress.cursor_step, progress.seed, loaded.train["line_chain"][rank])
pack._restore_rest = all_from_0""",
    "rng_restored_before_a_draw": """
def then_draw(states, device):
    restore_rng(states, device)
    torch.empty((), dtype=torch.int64).random_()
module.restore_rng = then_draw""",
    "momentum_lost": """
restore_optimizer = pack._restore_optimizer
def lose(self, loaded):
    restore_optimizer(self, loaded)
    for entries in self.optimizer.state.values():
        entries["momentum_buffer"].zero_()
pack._restore_optimizer = lose""",
    "schedule_from_the_start": """
def reset(self, loaded):
    progress = rest(self, loaded)
    self.scheduler.last_epoch = 0
    return progress
pack._restore_rest = reset""",
    "cursor_off_by_one": """
def skip(self, loaded):
    progress = rest(self, loaded)
    self.sampler.advance()
    return progress
pack._restore_rest = skip""",
}


def plant(folder: Path, body: str) -> dict[str, str]:
    """The environment in which every process of a run has the bug."""
    folder.mkdir()
    indented = "\n".join(f"    {line}" for line in body.strip().splitlines())
    (folder / "sitecustomize.py").write_text(PLANT.replace("{body}", indented))
    return {"PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


SHAPE = tiny("failure.steps=[9]", "model=vit", "model.width=16", "model.depth=1", "world_size=2", "model.dropout=0.2", "state_digests=true")
# The learning rate of the first step after a recovery is restored with the optimizer: a schedule that starts anew shows one step later.
FIRST_WRONG = {"schedule_from_the_start": 8}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    run_ecrl(folder, "train", *SHAPE, "variant=ref", "run_dir=reference")
    return folder / "reference"


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_planted_recovery_bug_is_found(ecrl: Ecrl, tmp_path: Path, reference: Path, bug: str) -> None:
    ecrl("train", *SHAPE, "variant=blk", "run_dir=run", environment=plant(tmp_path / "plant", BUGS[bug]))
    said = ecrl("verify", "run", "--reference", str(reference), check=1).stdout
    assert "Broke promise" in said and f"step {FIRST_WRONG.get(bug, 7)}" in said, said


def test_without_a_bug_the_same_run_is_valid(ecrl: Ecrl, reference: Path) -> None:
    ecrl("train", *SHAPE, "variant=blk", "run_dir=run")
    ecrl("verify", "run", "--reference", str(reference))
