"""Tiny ImageNet as its archive unpacks: train/WNID/images/*.JPEG, val/images/*.JPEG with the
classes in val/val_annotations.txt.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from ecrl_cli.config.schema import DatasetConfig
from ecrl_cli.data import preflight
from ecrl_cli.data.sample_set import DatasetInfo, Ids, Labels, Pixels, SampleSet
from ecrl_cli.errors import DatasetError

SIDE = 64
MEAN, STD = (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)  # of the training images


class TinyImageNetWithIDs(SampleSet):
    """A sample id is the index in the order of classes by WNID and files by name; images are read
    on demand.
    """

    def __init__(self, config: DatasetConfig, split: str = "train") -> None:
        preflight.check(config)
        folder = preflight.tiny_folder(config)
        wnids = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())
        self._samples = _training(folder, wnids) if split == "train" else _validation(folder, wnids)
        self.traits = DatasetInfo("tinyimagenet", len(wnids), (3, SIDE, SIDE), MEAN, STD)
        self._config, self._split = config, split

    def __len__(self) -> int:
        return len(self._samples)

    def held_out(self) -> SampleSet | None:
        """The official validation images."""
        return TinyImageNetWithIDs(self._config, "val") if self._split == "train" else None

    def fetch(self, ids: Ids) -> tuple[Pixels, Labels]:
        chosen = [self._samples[int(sample_id)] for sample_id in ids]
        pixels = np.stack([_picture(path) for path, _ in chosen]).transpose(0, 3, 1, 2)
        return np.ascontiguousarray(pixels), np.array(
            [label for _, label in chosen], dtype=np.int64
        )


def _training(folder: Path, wnids: list[str]) -> list[tuple[Path, int]]:
    files = [
        (path, label)
        for label, wnid in enumerate(wnids)
        for path in sorted((folder / "train" / wnid / "images").glob("*.JPEG"))
    ]
    if not files:
        raise DatasetError(
            "dataset.root",
            f"{folder / 'train'} holds no WNID/images/*.JPEG",
            "unpack the archive again",
        )
    return files


def _validation(folder: Path, wnids: list[str]) -> list[tuple[Path, int]]:
    """Sorted by file name, so that the order does not depend on that of the annotations."""
    table = folder / "val" / "val_annotations.txt"
    rows = sorted(
        line.split("\t")[:2]
        for line in table.read_text(encoding="utf-8").splitlines()
        if line.strip()
    )
    if wrong := next((row for row in rows if len(row) < 2 or row[1] not in wnids), None):
        raise DatasetError(
            "dataset.root", f"{table}: {wrong} names no class of train/", "unpack the archive again"
        )
    return [(folder / "val" / "images" / name, wnids.index(wnid)) for name, wnid in rows]


def _picture(path: Path) -> Pixels:
    """The image as (64, 64, 3); greyscale ones are converted to RGB."""
    try:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
    except OSError as error:  # Pillow's errors too
        raise DatasetError(
            "dataset.root", f"{path} cannot be read ({error})", "restore that file"
        ) from error
    if pixels.shape != (SIDE, SIDE, 3):
        raise DatasetError(
            "dataset.root",
            f"{path} is {pixels.shape[1]} x {pixels.shape[0]} pixels, not {SIDE} x {SIDE}",
            "restore that file",
        )
    return pixels
