"""How stock loaders react to one flipped bit, for comparison. The study's only file that imports torch, and only when it runs."""

from __future__ import annotations

import random
import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from ecrl_cli.studies.corruption.byte_faults import bitflip
from ecrl_cli.studies.frame.study import Arm, StudyContext, Trial, asked

SLICE = 50
LOADERS = ("torch.load", "safetensors", "torch.distributed.checkpoint")
_MODEL, _OPTIMIZER = 128 * 1024 // 4, 64 * 1024 // 4  # float32 values in the published payload

State = dict[str, Any]  # torch.Tensor by name


@dataclass(frozen=True)
class Loader:
    save: Callable[[State, Path], None]
    load: Callable[[State, Path], State]


def _trials(setting: StudyContext) -> list[Trial]:
    count = setting.config.study.flips
    return [
        Trial(f"anchors/{name}/{number:03d}", {"arm": "anchors", "loader": name, "flips": min(SLICE, count - start)})
        for number, start in enumerate(range(0, count, SLICE))
        for name in LOADERS
    ]


def _run(setting: StudyContext, trial: Trial) -> dict[str, Any]:
    """Save once; then flip one bit anywhere in the output, load, and restore the bit. Only the loader's result is judged."""
    loader, root, rng = _loaders()[str(trial.facts["loader"])], setting.scratch / "stock", setting.rng(trial.key)
    state = _state(rng.getrandbits(48))
    counts: Counter[str] = Counter()
    root.mkdir()
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            loader.save(state, root)
            files = sorted(path for path in root.rglob("*") if path.is_file())
            assert _outcome(loader, state, root) == "harmless"
            for _ in range(int(trial.facts["flips"])):
                counts[_flipped(loader, state, root, _by_size(files, rng), rng)] += 1
    finally:
        shutil.rmtree(root)
    return {"outcome": "silent_wrong" if counts["silent_wrong"] else "detected"} | {
        name: counts[name] for name in ("raised", "silent_wrong", "harmless")
    }


def _by_size(files: list[Path], rng: random.Random) -> Path:
    """A file, weighted by size."""
    return rng.choices(files, [path.stat().st_size for path in files])[0]


def _flipped(loader: Loader, state: State, root: Path, path: Path, rng: random.Random) -> str:
    whole = path.read_bytes()
    path.write_bytes(bitflip(whole, rng))
    try:
        return _outcome(loader, state, root)
    finally:
        path.write_bytes(whole)


def _outcome(loader: Loader, state: State, root: Path) -> str:
    """raised, silent_wrong, or harmless: the bytes of every tensor match what was saved."""
    try:
        loaded = loader.load(state, root)
        same = loaded.keys() == state.keys() and all(_same(loaded[name], tensor) for name, tensor in state.items())
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # CheckpointException does not derive from Exception
        return "raised"
    return "harmless" if same else "silent_wrong"


def _same(found: Any, saved: Any) -> bool:
    import torch

    if found.dtype != saved.dtype or found.shape != saved.shape:
        return False
    return torch.equal(found.contiguous().view(-1).view(torch.uint8), saved.view(-1).view(torch.uint8))


def _state(seed: int) -> State:
    import torch

    generator = torch.Generator().manual_seed(seed)
    sizes = {"model.weight": _MODEL, "optimizer.momentum": _OPTIMIZER}
    return {name: torch.randn(size, generator=generator) for name, size in sizes.items()}


def _loaders() -> dict[str, Loader]:
    import safetensors.torch
    import torch
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.checkpoint.state_dict_saver import save

    def dcp_load(state: State, root: Path) -> State:
        into = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        load(into, checkpoint_id=root, no_dist=True)
        return into

    return {
        "torch.load": Loader(
            lambda state, root: torch.save(state, root / "state.pt"), lambda state, root: dict(torch.load(root / "state.pt", weights_only=True))
        ),
        "safetensors": Loader(
            lambda state, root: safetensors.torch.save_file(state, root / "state.safetensors"),
            lambda state, root: safetensors.torch.load_file(root / "state.safetensors"),
        ),
        "torch.distributed.checkpoint": Loader(lambda state, root: _ignored(save(state, checkpoint_id=root, no_dist=True)), dcp_load),
    }


def _ignored(value: object) -> None:
    """Discard the return value of a call."""


ANCHORS = Arm("anchors", _trials, _run, asked("anchors"))
