"""Contents of the official archives and download addresses of the data sets. Torch-free, so that the supervising side can check a copy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Archive:
    """`files`: MD5 of every file (torchvision's tables); `folder`: its folder under root/NAME; `size`: training samples."""

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
