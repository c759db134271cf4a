"""The files of the data sets: what the official archives hold, downloading them, and checking that
a copy is present and intact.

On the supervising side before the start, and on each rank before loading. Torch-free.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ecrl_cli.config.schema import DatasetConfig
from ecrl_cli.errors import DatasetError
from ecrl_cli.storage.files import write_whole

CONNECT_S = 1.5  # seconds; keeps the error within two seconds on a machine without a network
CHUNK = 1 << 20  # bytes
DIGITS_SIZE = 1797
# torchvision's
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


@dataclass(frozen=True)
class Archive:
    """`files`: MD5 of every file (torchvision's tables); `folder`: its folder under root/NAME;
    `size`: training samples.
    """

    url: str
    md5: str
    folder: str
    files: dict[str, str]
    size: int
    classes: int


TINY_FOLDER, TINY_URL = "tiny-imagenet-200", "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
NT3_FILES = {"train": "nt_train2.csv", "test": "nt_test2.csv"}
NT3_URL = "http://ftp.mcs.anl.gov/pub/candle/public/benchmarks/Pilot1/normal-tumor/"

ARCHIVES = {
    "cifar10": Archive(
        url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        md5="c58f30108f718f92721af3b95e74349a",
        folder="cifar-10-batches-py",
        files={
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
            "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
        },
        size=50_000,
        classes=10,
    ),
    "cifar100": Archive(
        url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        md5="eb9058c3a382ffc7106e4002c42a8d85",
        folder="cifar-100-python",
        files={
            "train": "16019d7e3df5f24257cddd939b257f8d",
            "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
            "meta": "7973b15100ade9c7d40fb424638fde48",
        },
        size=50_000,
        classes=100,
    ),
}


def download(archive: Archive, home: Path) -> None:
    """Puts the archive's files under `home`. DatasetError if the download fails or the MD5
    differs.
    """
    try:
        with tempfile.TemporaryFile() as file:
            got = _fetch(archive.url, file)
            if got != archive.md5:
                raise DatasetError(
                    "dataset.download",
                    f"{archive.url} md5 mismatch (expected {archive.md5}, got {got})",
                    _remedy(archive, home),
                )
            file.seek(0)
            _unpack(archive, file, home)
    except (OSError, tarfile.TarError) as error:
        fact = (
            f"{home / archive.folder} lacks files, and {archive.url} cannot be downloaded"
            f" ({getattr(error, 'reason', error)})"
        )
        raise DatasetError("dataset.root", fact, _remedy(archive, home)) from error


def _remedy(archive: Archive, home: Path) -> str:
    return (
        f"put the official archive's files into {home / archive.folder}, or set dataset.root to the"
        f" folder that holds {home.name}/"
    )


def _fetch(url: str, file: IO[bytes]) -> str:
    """Streams `url` into `file`; returns its MD5."""
    import urllib.request  # brings ssl, http and email, which only a download needs

    digest = hashlib.md5(usedforsecurity=False)
    with urllib.request.urlopen(url, timeout=CONNECT_S) as response:
        while chunk := response.read(CHUNK):
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()


def _unpack(archive: Archive, file: IO[bytes], home: Path) -> None:
    folder = home / archive.folder
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=file) as tar:
        for name in archive.files:
            member = tar.extractfile(f"{archive.folder}/{name}")
            if member is None:
                raise tarfile.TarError(f"{name} is no file")
            write_whole(folder / name, member.read(), durable=False)


def prepare(dataset: DatasetConfig, say: Callable[[str], None] = lambda line: None) -> bool:
    """`check`, after a download where files are missing and `download` allows it; returns whether
    there was one. Call it in one process, before the ranks start.
    """
    downloads = dataset.download and bool(missing(dataset))
    if downloads:
        archive = ARCHIVES[dataset.name]
        say(f"downloading {dataset.name} from {archive.url} to {home(dataset)}")
        download(archive, home(dataset))
    check(dataset)
    return downloads


def check(dataset: DatasetConfig) -> None:
    """DatasetError for a missing folder or file, or a wrong MD5 where the official checksums are
    required.
    """
    try:
        if dataset.name in ARCHIVES:
            _check_archive(dataset)
        elif dataset.name == "imagefolder":
            _check_image_folder(image_folder(dataset))
        elif dataset.name == "tinyimagenet":
            _check_there(
                dataset,
                [
                    tiny_folder(dataset) / name
                    for name in ("train", "val/images", "val/val_annotations.txt")
                ],
                f"unpack {TINY_URL}",
            )
        elif dataset.name == "nt3":
            _check_there(
                dataset,
                [home(dataset) / name for name in NT3_FILES.values()],
                f"put {' and '.join(NT3_FILES.values())} of {NT3_URL}",
            )
    except OSError as error:
        raise DatasetError(
            "dataset.root",
            f"{error.filename or home(dataset)} cannot be read ({error.strerror})",
            "make it readable",
        ) from error


def known_size(dataset: DatasetConfig) -> int | None:
    """Number of training samples, where known without reading them; else None. DatasetError if
    dataset.held_out leaves none.
    """
    size = _whole_size(dataset)
    if dataset.held_out and size is not None and dataset.held_out >= size:
        fact = (
            f"{dataset.held_out} of the {size} samples of {dataset.name} leave nothing to train on"
        )
        raise DatasetError("dataset.held_out", fact, f"use less than {size}")
    return None if size is None else size - dataset.held_out


def without_held_out(dataset: DatasetConfig) -> bool:
    """Whether it is known, without reading the data, that there is nothing to measure quality
    on.
    """
    none = dataset.name == "digits" or (
        dataset.name == "imagefolder" and held_out_images(dataset) is None
    )
    return none and not dataset.held_out


def _whole_size(dataset: DatasetConfig) -> int | None:
    if dataset.name == "digits":
        return DIGITS_SIZE
    if dataset.name == "fake":
        return dataset.size
    if dataset.name in ARCHIVES and dataset.checksum == "official":
        return ARCHIVES[dataset.name].size
    if dataset.name == "imagefolder":
        return sum(1 for folder in _class_folders(image_folder(dataset)) for _ in _images(folder))
    return None


def home(dataset: DatasetConfig) -> Path:
    """The data set's own folder, root/NAME; torchvision's `root`."""
    return Path(dataset.root).expanduser() / dataset.name


def image_folder(dataset: DatasetConfig) -> Path:
    """The folder that holds one folder per class: root/imagefolder, or its `train` where there is
    one.
    """
    train = home(dataset) / "train"
    return train if train.is_dir() else home(dataset)


def held_out_images(dataset: DatasetConfig) -> Path | None:
    """root/imagefolder/val, where it stands beside `train`; else None."""
    folder = home(dataset) / "val"
    return folder if folder.is_dir() and image_folder(dataset) != home(dataset) else None


def tiny_folder(dataset: DatasetConfig) -> Path:
    """The folder that Tiny ImageNet's archive unpacks to."""
    return home(dataset) / TINY_FOLDER


def missing(dataset: DatasetConfig) -> list[Path]:
    """The missing files of the official archive; none for a data set without one."""
    archive = ARCHIVES.get(dataset.name)
    return (
        [
            path
            for path in (home(dataset) / archive.folder / name for name in archive.files)
            if not path.is_file()
        ]
        if archive
        else []
    )


def _check_archive(dataset: DatasetConfig) -> None:
    lacking = missing(dataset)
    archive = ARCHIVES[dataset.name]
    folder = home(dataset) / archive.folder
    if lacking:
        what = (
            f"{lacking[0]} is missing"
            if folder.is_dir()
            else f"{dataset.name} is not there: no folder {folder}"
        )
        remedy = (
            "put the official archive's files there, or set dataset.root to the folder that holds"
            f" {dataset.name}/"
        )
        raise DatasetError(
            "dataset.root",
            what,
            f"{remedy}{'' if dataset.download else ', or set dataset.download=true'}",
        )
    if dataset.checksum == "official":
        for name, expected in archive.files.items():
            _check_sum(folder / name, expected)


def _check_there(dataset: DatasetConfig, paths: list[Path], ways: str) -> None:
    """DatasetError for the first of `paths` that does not exist; `ways` begins the remedy."""
    for path in paths:
        if not path.exists():
            remedy = (
                f"{ways} into {home(dataset)}, or set dataset.root to the folder that holds"
                f" {dataset.name}/"
            )
            raise DatasetError(
                "dataset.root", f"{dataset.name} is not there: {path} is missing", remedy
            )


def _check_sum(path: Path, expected: str) -> None:
    with path.open("rb") as file:
        got = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if got != expected:
        remedy = (
            "restore the official file, or set dataset.checksum=none for a subset or a copy that"
            " you trust"
        )
        raise DatasetError(
            "dataset.checksum", f"{path} md5 mismatch (expected {expected}, got {got})", remedy
        )


def _check_image_folder(folder: Path) -> None:
    if not folder.is_dir():
        remedy = (
            "put one folder of images per class there, or set dataset.root to the folder that holds"
            " imagefolder/"
        )
        raise DatasetError("dataset.root", f"imagefolder is not there: no folder {folder}", remedy)
    classes = _class_folders(folder)
    if len(classes) < 2:
        raise DatasetError(
            "dataset.root",
            f"{folder} has {len(classes)} class folders, need 2 or more",
            "put one folder of images per class there",
        )
    for each in classes:
        if next(_images(each), None) is None:
            raise DatasetError(
                "dataset.root",
                f"{each} holds no image ({' '.join(IMAGE_SUFFIXES)})",
                "fill or remove that folder",
            )


def _class_folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _images(folder: Path) -> Iterator[str]:
    for _, _, names in os.walk(folder, followlinks=True):
        yield from (name for name in names if name.lower().endswith(IMAGE_SUFFIXES))
