"""Stalls whose parts are not what they were, and `.pt` checkpoints of other numbers whose hashes
are all made right again.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.format.canonical_json import canonical_json
from ecrl_cli.checkpoint.format.hashing import document_entry
from ecrl_cli.checkpoint.format.manifest import make_commit, read_manifest
from ecrl_cli.checkpoint.format.names import COMMIT, MANIFEST, TRAIN
from ecrl_cli.config.codec import encode
from ecrl_cli.history.load import load
from ecrl_cli.metrics.document import metrics_document
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.storage.files import write_json
from ecrl_cli.verify.verdict import INVALID
from tests.runs.spoil import edit_json, edit_lines

STEP = 18  # committed by attempt 1, and resumed from by attempt 2
LAST = 24
Spoil = Callable[[RunLayout], Any]


def _line(layout: RunLayout, event: str, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Change the line of that event of the checkpoint of STEP, in place."""

    def apply(line: dict[str, Any]) -> dict[str, Any]:
        if (line["event"], line["global_step"]) == (event, STEP):
            edit(line)
        return line

    edit_lines(layout.attempt(1).checkpoints, apply)


def parts(**changes: float) -> Spoil:
    """Add to the parts of one stall."""

    def edit(line: dict[str, Any]) -> None:
        found = line["stall_parts"]
        line["stall_parts"] = found | {
            name: found.get(name, 0.0) + seconds for name, seconds in changes.items()
        }

    return lambda layout: _line(layout, "released", edit)


def _a_tenth(line: dict[str, Any]) -> None:
    line.update(
        stall_s=line["stall_s"] / 10,
        stall_parts={name: seconds / 10 for name, seconds in line["stall_parts"].items()},
    )


def _all_a_tenth(layout: RunLayout) -> None:
    """All that the lines of the checkpoint say, in agreement with each other."""
    _line(layout, "released", _a_tenth)
    _line(layout, "submitted", lambda line: line.update(snapshot_s=line["snapshot_s"] / 10))
    _line(
        layout,
        "committed",
        lambda line: line.update(
            {name: line[name] / 10 for name in ("write_s", "hash_s", "commit_s")}
        ),
    )


def _booked_as_computing(layout: RunLayout) -> None:
    def apply(span: dict[str, Any]) -> dict[str, Any]:
        return (
            span | {"category": "compute"}
            if (span["category"], span["global_step"]) == ("write_wait", STEP)
            else span
        )

    edit_lines(layout.attempt(1).spans(0), apply)


def as_torch_file(
    layout: RunLayout,
    change: Callable[[dict[str, Any]], Any] = lambda tensors: None,
    *,
    digests: bool = False,
) -> None:
    """Let the last checkpoint be a `.pt` file with all records made right, the journal's too;
    `digests`: those of its tensors as well.
    """
    import torch  # two seconds, for these few cases alone
    from safetensors.torch import load_file

    from tests.unit.torch_checkpoints import digest_of, saved

    folder = layout.checkpoints / f"step_{LAST:08d}"
    train, manifest = (folder / TRAIN).read_bytes(), json.loads((folder / MANIFEST).read_bytes())
    previous = json.loads((folder / COMMIT).read_bytes())["prev_commit_sha256"]
    tensors: dict[str, torch.Tensor] = {
        name: tensor
        for part in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(part).items()
    }
    entries = {
        name: entry
        for part in manifest["parts"].values()
        for name, entry in part["tensors"].items()
    }
    change(tensors)
    if digests:
        entries = {
            name: entry | {"digest": digest_of(tensors[name])} for name, entry in entries.items()
        }
    data = saved({"tensors": tensors, "train": train.decode()})
    _replace(layout, folder, data, entries, train, manifest, previous)


def _replace(
    layout: RunLayout,
    folder: Path,
    data: bytes,
    entries: Any,
    train: bytes,
    manifest: Any,
    previous: str | None,
) -> None:
    import hashlib
    import shutil

    name = folder.name + ".pt"
    manifest["parts"] = {
        name: encode(document_entry(data)) | {"tensors": entries},
        TRAIN: encode(document_entry(train)),
    }
    text = canonical_json(manifest)
    commit = make_commit(read_manifest(text), hashlib.sha256(text).hexdigest(), previous)
    shutil.rmtree(folder)
    (folder.parent / name).write_bytes(data)
    (folder.parent / f"{folder.name}.json").write_bytes(
        canonical_json({"commit": commit.document(), "manifest": manifest, "train": train.decode()})
    )

    size = len(data) + len(train)

    def saved(line: dict[str, Any]) -> dict[str, Any]:
        if line["global_step"] != LAST or line["event"] not in ("submitted", "committed"):
            return line
        ends = (
            {"path": f"checkpoints/{name}", "commit_sha256": commit.self_sha256}
            if line["event"] == "committed"
            else {}
        )
        return line | {"bytes": size} | ends

    edit_lines(layout.attempt(2).checkpoints, saved)
    edit_json(layout.checkpoints / "latest.json", lambda pointer: pointer | {"path": name})
    (layout.checkpoints / "latest_ok").unlink()
    (layout.checkpoints / "latest_ok").symlink_to(name)
    write_json(layout.metrics, metrics_document(load(layout)))


def _not_a_number(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda tensors: tensors[name].view(-1)[0].fill_(float("nan"))


def _a_pickle_that_calls(layout: RunLayout) -> None:
    """The pickle of the `.pt` file is another one, which would make a folder."""
    from tests.unit.torch_checkpoints import rezipped, with_hashes_made_right

    as_torch_file(layout)
    path = layout.checkpoints / f"step_{LAST:08d}.pt"
    call = pickle.dumps(_Call(str(layout.root / "ran")), protocol=2)
    sha = with_hashes_made_right(
        path,
        rezipped(path.read_bytes(), lambda entries: entries.update({"archive/data.pkl": call})),
    )
    ours = {"event": "committed", "global_step": LAST}
    edit_lines(
        layout.attempt(2).checkpoints,
        lambda line: line | {"commit_sha256": sha} if line.items() >= ours.items() else line,
    )


class _Call:
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        import os

        return os.mkdir, (self.folder,)


TIME, NO_LOSS = "time-conserved", "no-acknowledged-loss"
WEIGHT, MOMENTUM = "parameters.weight", "optimizer.weight.momentum_buffer"
STALLS: dict[str, tuple[Spoil, str, str]] = {
    "parts of a stall that do not add up": (parts(write=0.01), TIME, INVALID),
    "a stall that is a tenth of its parts": (
        lambda run: _line(run, "released", lambda line: line.update(stall_s=0.0036)),
        TIME,
        INVALID,
    ),
    "a stall that is a tenth of its spans": (_all_a_tenth, TIME, INVALID),
    "a stall of nothing": (
        lambda run: _line(
            run, "released", lambda line: line.update(stall_s=0.0, stall_parts={"barrier": 0.0})
        ),
        TIME,
        INVALID,
    ),
    "settling booked as waiting for peers": (parts(settle=-0.004, barrier=0.004), TIME, INVALID),
    "writing booked as committing": (parts(write=-0.01, commit=0.01), TIME, INVALID),
    "hashing booked as settling": (parts(hash=-0.005, settle=0.005), TIME, INVALID),
    "waiting for peers booked as backpressure": (
        parts(barrier=-0.002, backpressure=0.002),
        TIME,
        INVALID,
    ),
    "a part below nothing": (parts(settle=-0.01, write=0.01), TIME, INVALID),
    "a part that is no number": (parts(settle=float("nan")), TIME, INVALID),
    "a part of no name": (parts(settle=-0.004, other=0.004), TIME, INVALID),
    "one stall without its parts": (
        lambda run: _line(run, "released", lambda line: line.pop("stall_parts")),
        TIME,
        INVALID,
    ),
    "a snapshot that was quicker": (
        lambda run: _line(run, "submitted", lambda line: line.update(snapshot_s=0.0004)),
        TIME,
        INVALID,
    ),
    "a write that was quicker": (
        lambda run: _line(run, "committed", lambda line: line.update(write_s=0.0015)),
        TIME,
        INVALID,
    ),
    "waiting for a write booked as computing": (_booked_as_computing, TIME, INVALID),
    "a `.pt` with NaN in a parameter": (
        lambda run: as_torch_file(run, _not_a_number(WEIGHT)),
        NO_LOSS,
        INVALID,
    ),
    "a `.pt` with NaN in a parameter, its digest made right": (
        lambda run: as_torch_file(run, _not_a_number(WEIGHT), digests=True),
        NO_LOSS,
        INVALID,
    ),
    "a `.pt` with NaN in the optimizer, its digest made right": (
        lambda run: as_torch_file(run, _not_a_number(MOMENTUM), digests=True),
        NO_LOSS,
        INVALID,
    ),
    "a `.pt` with another number": (
        lambda run: as_torch_file(run, lambda t: t[WEIGHT].view(-1)[0].fill_(0.25)),
        NO_LOSS,
        INVALID,
    ),
    "a `.pt` of another shape": (
        lambda run: as_torch_file(run, lambda t: t.update({WEIGHT: t[WEIGHT].view(3, 4)})),
        NO_LOSS,
        INVALID,
    ),
    "a `.pt` that would call": (_a_pickle_that_calls, NO_LOSS, INVALID),
}
