"""How stock loaders react to one flipped bit, for comparison. Imports torch, and only when it
runs.
"""

from __future__ import annotations

import random
import shutil
import warnings
from collections import Counter
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

from ecrl_cli.studies.corruption.byte_faults import bitflip
from ecrl_cli.studies.frame.checkpointers import (
    NAMES,
    State,
    StockCheckpointer,
    checkpointer,
    lacking,
)
from ecrl_cli.studies.frame.study import Arm, Skip, StudyContext, Trial, asked

SLICE = 50
# by the name in the tables
LOADERS = {"torch.load": "torch.save", **{name: name for name in NAMES[1:]}}
_MODEL, _OPTIMIZER = 128 * 1024 // 4, 64 * 1024 // 4  # float32 values in the published payload


def skips() -> list[Skip]:
    return [
        Skip(f"anchors: {name}", reason)
        for name, module in LOADERS.items()
        if (reason := lacking(module))
    ]


def _trials(setting: StudyContext) -> list[Trial]:
    count = setting.config.study.flips
    return [
        Trial(
            f"anchors/{name}/{number:03d}",
            {"arm": "anchors", "loader": name, "flips": min(SLICE, count - start)},
        )
        for number, start in enumerate(range(0, count, SLICE))
        for name, module in LOADERS.items()
        if not lacking(module)
    ]


def _run(setting: StudyContext, trial: Trial) -> dict[str, Any]:
    """Save once; then flip one bit anywhere in the output, load, and restore the bit. Only the
    loader's result is judged.
    """
    loader, root, rng = (
        checkpointer(LOADERS[str(trial.facts["loader"])]),
        setting.scratch / "stock",
        setting.rng(trial.key),
    )
    state = _state(rng.getrandbits(48))
    counts: Counter[str] = Counter()
    path = root / f"state{loader.suffix}"
    root.mkdir()
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            loader.save(state, path)
            files = sorted(path for path in root.rglob("*") if path.is_file())
            sizes = [path.stat().st_size for path in files]
            assert _outcome(loader, state, path) == "harmless"
            for _ in range(int(trial.facts["flips"])):
                counts[_flipped(loader, state, path, rng.choices(files, sizes)[0], rng)] += 1
    finally:
        shutil.rmtree(root)
    return {"outcome": "silent_wrong" if counts["silent_wrong"] else "detected"} | {
        name: counts[name] for name in ("raised", "silent_wrong", "harmless")
    }


def _flipped(
    loader: StockCheckpointer, state: State, path: Path, file: Path, rng: random.Random
) -> str:
    whole = file.read_bytes()
    file.write_bytes(bitflip(whole, rng))
    try:
        return _outcome(loader, state, path)
    finally:
        file.write_bytes(whole)


def _outcome(loader: StockCheckpointer, state: State, path: Path) -> str:
    """raised, silent_wrong, or harmless: the bytes of every tensor match what was saved."""
    try:
        loaded = loader.load(state, path)
        same = loaded.keys() == state.keys() and all(
            _same(loaded[name], tensor) for name, tensor in state.items()
        )
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # CheckpointException does not derive from Exception
        return "raised"
    return "harmless" if same else "silent_wrong"


def _same(found: Any, saved: Any) -> bool:
    import torch

    if found.dtype != saved.dtype or found.shape != saved.shape:
        return False
    return torch.equal(
        found.contiguous().view(-1).view(torch.uint8), saved.view(-1).view(torch.uint8)
    )


def _state(seed: int) -> State:
    import torch

    generator = torch.Generator().manual_seed(seed)
    sizes = {"model_weight": _MODEL, "optimizer_momentum": _OPTIMIZER}
    return {name: torch.randn(size, generator=generator) for name, size in sizes.items()}


ANCHORS = Arm("anchors", _trials, _run, asked("anchors"))
