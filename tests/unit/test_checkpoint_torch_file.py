"""`.pt` checkpoints are judged in full, without torch and without unpickling: by the integrity
check, by a scrub, and by the loader alike.
"""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ecrl_cli.checkpoint.capture.loading import load_checkpoint
from ecrl_cli.checkpoint.capture.shared_memory import Memory
from ecrl_cli.checkpoint.capture.staging_buffer import BufferLayout, StagingBuffer
from ecrl_cli.checkpoint.format.image import (
    CheckpointImage,
    CheckpointMeta,
    PartPlace,
    TensorSpec,
    plan_image,
)
from ecrl_cli.checkpoint.format.torch_file import _Interpreter
from ecrl_cli.checkpoint.repair.scrub import ScrubConfig, scrub
from ecrl_cli.checkpoint.store.catalog import newest_valid
from ecrl_cli.checkpoint.store.integrity import IntegrityConfig, verify_checkpoint
from ecrl_cli.checkpoint.store.synthetic import RUN_ID
from ecrl_cli.errors import StorageError
from ecrl_cli.metrics.distance import distances
from ecrl_cli.storage.fs import PosixFs
from tests.unit.checkpoint_support import store_at
from tests.unit.torch_checkpoints import (
    Tensors,
    content,
    rezipped,
    saved,
    with_hashes_made_right,
    with_tensors,
)

WEIGHT, MEAN, MOMENTUM, COUNT = (
    "parameters.weight",
    "buffers.mean",
    "optimizer.weight.momentum_buffer",
    "optimizer.weight.step",
)
STATE: Tensors = {
    WEIGHT: torch.arange(6000, dtype=torch.float32).view(60, 100),
    MEAN: torch.arange(5, dtype=torch.bfloat16),
    "buffers.nothing": torch.zeros(0, 4),
    "buffers.none": torch.zeros(2, 0),
    "buffers.seen": torch.tensor(3),
    "buffers.mask": torch.tensor([True, False]),
    "buffers.phase": torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex64),
    MOMENTUM: torch.ones(60, 100, dtype=torch.float64),
    COUNT: torch.tensor(1.0),
    "rng.rank0.torch": torch.arange(200, dtype=torch.uint8),
}


def image(step: int) -> CheckpointImage:
    """What `Context.capture` hands over with checkpoint.format=torch."""
    plan = plan_image(
        {
            "all": [
                TensorSpec(name, str(tensor.dtype), tuple(tensor.shape))
                for name, tensor in STATE.items()
            ]
        }
    )
    slot = StagingBuffer(
        Memory.create(plan.nbytes + 2**18),
        BufferLayout(plan, ".pt", plan.nbytes + 2**18),
        torch.device("cpu"),
    )
    slot.capture(STATE)
    train = b'{"line_chain":[""]}'
    parts = slot.layout.parts(step, slot.serialize(train))
    return CheckpointImage(
        CheckpointMeta(RUN_ID, step, 0, step, 1, 1),
        slot.memory.view,
        tuple(PartPlace(p.name, p.offset, p.nbytes, p.tensors) for p in parts),
        {"train.json": train},
    )


def test_a_pt_is_compared_as_any_other_checkpoint(tmp_path: Path) -> None:
    """Distances that were worked out by hand; a run that diverged, where it is finite."""
    places = []
    for name in ("one", "other", "diverged"):
        (tmp_path / name).mkdir()
        store = store_at(tmp_path / name)
        places.append(store.save(image(10), 0).path)
        store.close()
    one, other, diverged = places

    def further(tensors: Tensors) -> None:
        tensors[WEIGHT][0, 0], tensors[MOMENTUM][0, 0], tensors[COUNT] = (
            3.0,
            1 + 2.0**-52,
            torch.tensor(5.0),
        )

    def diverge(tensors: Tensors) -> None:
        tensors[WEIGHT][0, 0], tensors[WEIGHT][0, 1] = torch.nan, 3.0

    with_tensors(one, further)
    with_tensors(diverged, diverge)
    found = distances(one, other)
    assert (
        found["parameters"].l2,
        found["parameters"].differing,
        found["buffers"].equal,
        found["rng"].equal,
    ) == (3.0, 1, True, True)
    assert found["optimizer"].l2 == pytest.approx(4.0) and found["optimizer"].differing == 2
    apart = distances(diverged, other)["parameters"]
    assert (apart.l2, apart.not_finite, apart.max_ulp) == (2.0, 1, 3 * 2**22)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A committed `.pt` of step 20 with an older one beside it."""
    store = store_at(tmp_path)
    store.save(image(10), 0)
    found = store.save(image(20), 0).path
    store.close()
    return found


def layers(path: Path, finite: str = "all") -> tuple[str, str, str, str]:
    """Which layer refuses it: in the integrity check, in one pass, in a deep scrub, in the loader
    (empty: none).
    """
    config = IntegrityConfig(finite=finite)
    looked = {
        one.report.path.name: one.report
        for one in scrub(
            path.parent, config=ScrubConfig(deep=True, integrity=replace(config, trust_owner=True))
        ).looked
    }
    try:
        load_checkpoint(path, finite=finite)
        loaded = ""
    except StorageError as error:
        loaded = error.fact.split(" failed at ")[1].split(":")[0]
    return (
        verify_checkpoint(path, config).layer,
        verify_checkpoint(path, config, once=True).layer,
        looked[path.name].layer,
        loaded,
    )


def test_what_torch_wrote_is_read_bit_for_bit_without_it(path: Path) -> None:
    assert layers(path) == ("", "", "", "")
    loaded = load_checkpoint(path).tensors
    assert loaded.keys() == STATE.keys()
    assert all(
        loaded[name].dtype == tensor.dtype and torch.equal(loaded[name], tensor)
        for name, tensor in STATE.items()
    )


def test_tensors_of_any_number_of_dimensions_are_read_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in range(1, 6):
        monkeypatch.setitem(STATE, f"parameters.{size}", torch.rand(*range(2, 2 + size)))
    with closing(store_at(tmp_path)) as store:
        path = store.save(image(20), 0).path
    assert layers(path) == ("", "", "", "")
    loaded = load_checkpoint(path).tensors
    assert all(torch.equal(loaded[name], tensor) for name, tensor in STATE.items())


def test_what_is_loaded_is_the_checkpoint_that_was_asked_for(path: Path) -> None:
    sha256 = verify_checkpoint(path).commit_sha256 or ""
    assert load_checkpoint(path, sha256).manifest.global_step == 20
    with pytest.raises(StorageError) as caught:
        load_checkpoint(path, "f" * 64)
    assert caught.value.fact == f"step_00000020.pt failed at commit: is {sha256[:8]}, not ffffffff"


def test_a_parameter_that_is_not_a_number_is_refused_though_every_hash_was_made_right(
    path: Path,
) -> None:
    with_tensors(path, lambda tensors: tensors[WEIGHT].view(-1)[7].fill_(float("nan")))
    assert layers(path) == ("finite", "finite", "finite", "finite")
    assert layers(path, "off") == ("", "", "", "")


def test_a_parameter_of_another_digest_is_refused_where_tensors_are_digested(path: Path) -> None:
    """One pass and the loader believe the file's hash, which is right here, for every format."""
    with_tensors(path, lambda tensors: tensors[WEIGHT].view(-1)[7].fill_(0.5), digests=False)
    assert layers(path) == ("tensors", "", "tensors", "")


@pytest.mark.parametrize(
    ("name", "refusing"),
    [
        (WEIGHT, {"all", "model", "parameters"}),
        (MEAN, {"all", "model"}),
        ("buffers.phase", {"all", "model"}),
        (MOMENTUM, {"all"}),
        (COUNT, {"all"}),
    ],
)
def test_what_must_be_finite_is_a_setting(path: Path, name: str, refusing: set[str]) -> None:
    with_tensors(path, lambda tensors: tensors[name].view(-1)[-1:].fill_(float("inf")))
    for setting in ("all", "model", "parameters", "off"):
        assert layers(path, setting) == (("finite",) * 4 if setting in refusing else ("",) * 4), (
            setting
        )


def reshaped(tensors: Tensors) -> None:
    tensors[WEIGHT] = tensors[WEIGHT].view(100, 60)


def transposed(tensors: Tensors) -> None:
    tensors[WEIGHT] = tensors[WEIGHT].view(100, 60).t()


def shared(tensors: Tensors) -> None:
    tensors["buffers.seen"] = torch.tensor([3, 4])[1]


FORGED_TENSORS: dict[str, Callable[[Tensors], Any]] = {
    "another shape": reshaped,
    "other strides": transposed,
    "a part of a larger storage": shared,
    "another dtype": lambda tensors: tensors.update({WEIGHT: tensors[WEIGHT].view(torch.int32)}),
    "a tensor gone": lambda tensors: tensors.pop(MEAN),
    "a tensor too many": lambda tensors: tensors.update({"parameters.bias": torch.zeros(1)}),
    "a tensor that wants gradients": lambda tensors: tensors[WEIGHT].requires_grad_(),
    "no tensor": lambda tensors: tensors.update({WEIGHT: 3}),
}


@pytest.mark.parametrize("case", FORGED_TENSORS)
def test_tensors_that_disagree_with_the_manifest_are_refused(path: Path, case: str) -> None:
    value = content(path)
    FORGED_TENSORS[case](value["tensors"])
    with_hashes_made_right(path, saved(value))
    assert layers(path) == ("schema",) * 4


class Payload:
    """Unpickled, it would make a folder."""

    def __init__(self, target: Path) -> None:
        self.target = str(target)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.target,)


def swapped(name: str, data: bytes) -> Callable[[dict[str, bytes]], Any]:
    return lambda entries: entries.update({f"archive/{name}": data})


def moved_storage(entries: dict[str, bytes]) -> None:
    entries["archive/data/x"] = entries.pop("archive/data/0")


def within_another(data: bytes, _: Path) -> bytes:
    """The directory of the zip points to a copy of the last storage, header and all, that lies
    among the numbers of the first.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        first, last = (archive.getinfo(f"archive/data/{number}") for number in (0, len(STATE) - 1))
    length = (
        30
        + int.from_bytes(data[last.header_offset + 26 :][:2], "little")
        + int.from_bytes(data[last.header_offset + 28 :][:2], "little")
    )
    forged, target = bytearray(data), first.header_offset + 4096
    forged[target : target + length + last.file_size] = data[
        last.header_offset : last.header_offset + length + last.file_size
    ]
    listed = data.rindex(last.filename.encode())
    forged[listed - 4 : listed] = target.to_bytes(4, "little")
    return bytes(forged)


FORGED_FILES: dict[str, Callable[[bytes, Path], bytes]] = {
    "no zip file": lambda data, _: b"\0" * len(data),
    "an empty file": lambda data, _: b"",
    "a pickle that calls": lambda data, out: rezipped(
        data, swapped("data.pkl", pickle.dumps(Payload(out), protocol=2))
    ),
    "a pickle of another protocol": lambda data, _: rezipped(
        data, swapped("data.pkl", pickle.dumps({"tensors": {}, "train": "{}"}, protocol=4))
    ),
    "a pickle cut short": lambda data, _: rezipped(
        data, lambda e: e.update({"archive/data.pkl": e["archive/data.pkl"][:-40]})
    ),
    "a pickle with more behind it": lambda data, _: rezipped(
        data, lambda e: e.update({"archive/data.pkl": e["archive/data.pkl"] + b"N."})
    ),
    "a pickle of a gigabyte, packed": lambda data, _: rezipped(
        data, swapped("data.pkl", b"]" * 2**24), zipfile.ZIP_DEFLATED
    ),
    "a pickle that is too long": lambda data, _: rezipped(data, swapped("data.pkl", b"]" * 2**20)),
    "a storage cut short": lambda data, _: rezipped(
        data, lambda e: e.update({"archive/data/0": e["archive/data/0"][:-4]})
    ),
    "a storage gone": lambda data, _: rezipped(data, lambda e: e.pop("archive/data/0")),
    "a storage under another name": lambda data, _: rezipped(data, moved_storage),
    "an entry that does not belong": lambda data, _: rezipped(data, swapped("code/evil.py", b"x")),
    "an entry outside": lambda data, _: rezipped(
        data, lambda e: e.update({"other/data.pkl": e["archive/data.pkl"]})
    ),
    "the other byte order": lambda data, _: rezipped(data, swapped("byteorder", b"big")),
    "packed": lambda data, _: rezipped(data, lambda e: None, zipfile.ZIP_DEFLATED),
    "a local header of another name": lambda data, _: data.replace(
        b"archive/data/0", b"archive/data/9", 1
    ),
    "a storage within another": within_another,
    "another train.json": lambda data, _: rezipped(
        data,
        lambda e: e.update({"archive/data.pkl": e["archive/data.pkl"].replace(b'[""]', b"[1 ]")}),
    ),
}


@pytest.mark.parametrize("case", FORGED_FILES)
def test_a_file_that_torch_would_not_write_is_refused_and_nothing_in_it_runs(
    path: Path, tmp_path: Path, case: str
) -> None:
    data = FORGED_FILES[case](path.read_bytes(), tmp_path / "ran")
    assert data != path.read_bytes()
    with_hashes_made_right(path, data)
    assert layers(path) == ("schema",) * 4
    assert not (tmp_path / "ran").exists()


def test_recovery_falls_back_behind_a_forged_file_with_the_refusal_on_record(path: Path) -> None:
    with_tensors(path, lambda tensors: tensors[WEIGHT].view(-1)[7].fill_(float("nan")))
    choice = newest_valid(PosixFs(), path.parent, verify_checkpoint)
    assert choice.report is not None and choice.report.global_step == 10
    assert [(refused.path, refused.layer) for refused in choice.rejected] == [
        ("checkpoints/step_00000020.pt", "finite")
    ]


def test_the_zip_is_not_read_without_bound(path: Path) -> None:
    """A directory that claims to be as long as the file is not read into memory."""
    data = bytearray(path.read_bytes())
    end = data.rindex(b"PK\x05\x06")
    start = data.rindex(b"PK\x06\x06")
    data[start:start] = bytes(4 * 2**20)
    for at, size in ((start + 4 * 2**20 + 40, 8), (end + 4 * 2**20 + 12, 4)):
        data[at : at + size] = (4 * 2**20).to_bytes(size, "little")
    with_hashes_made_right(path, bytes(data))
    assert layers(path) == ("schema",) * 4


def test_the_judge_reads_it_without_torch(path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from ecrl_cli.checkpoint.store.integrity import"
        " verify_checkpoint; assert verify_checkpoint(Path(sys.argv[1])).ok; sys.exit('torch' in"
        " sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 0


def test_no_file_reads_what_another_one_remembered() -> None:
    """A pickle that fetches what it never stored."""
    assert _Interpreter().run(b"\x80\x02X\x01\x00\x00\x00aq\x00.") == "a"
    with pytest.raises(KeyError):
        _Interpreter().run(b"\x80\x02h\x00.")
