"""Writes small made-up data sets in the layouts of the official archives: python make_data.py DIR

CIFAR-10, CIFAR-100, a folder of images, Tiny ImageNet and the NT3 profiles, a few hundred samples
each, whose classes can be learnt. For trying every data set without a download:

    ecrl -m dataset=cifar10,cifar100,imagefolder,tinyimagenet scale=smoke dataset.root=DIR \\
        dataset.checksum=none
"""

import pickle
import sys
from pathlib import Path

import numpy as np
from PIL import Image

WNIDS = ("n01443537", "n02124075", "n07734744", "n09256479")
GENES = 120  # of NT3's 60,483


def pictures(labels, classes, side, draw):
    """Noise with a stripe whose place and colour tell the class: labels.size x side x side x 3."""
    pixels = draw.integers(0, 80, (labels.size, side, side, 3), dtype=np.uint8)
    for number, label in enumerate(labels):
        row = label * side // classes
        pixels[number, row : row + 3, :, label % 3] = 230
    return pixels


def cifar(folder, classes, key, names, draw):
    """`names`: the files and how many pictures each holds."""
    folder.mkdir(parents=True)
    for name, size in names.items():
        labels = np.arange(size) % classes
        planes = pictures(labels, classes, 32, draw).transpose(0, 3, 1, 2)
        batch = {"data": planes.reshape(size, -1), key: labels.tolist()}
        (folder / name).write_bytes(pickle.dumps(batch))


def one_by_one(name, label, count, side, draw):
    """`name`: of a file, with a place for its number."""
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    for number, pixels in enumerate(pictures(np.full(count, label), len(WNIDS), side, draw)):
        Image.fromarray(pixels).save(str(name).format(number))


def tiny(folder, draw):
    rows = []
    for label, wnid in enumerate(WNIDS):
        train = folder / "train" / wnid / "images"
        one_by_one(train / f"{wnid}_{{}}.JPEG", label, 60, 64, draw)
        one_by_one(folder / "val" / "images" / f"val_{label}_{{}}.JPEG", label, 8, 64, draw)
        rows += [f"val_{label}_{number}.JPEG\t{wnid}\t0\t0\t62\t62\n" for number in range(8)]
    (folder / "val" / "val_annotations.txt").write_text("".join(rows))


def nt3(folder, draw):
    folder.mkdir(parents=True)
    for name, size in (("nt_train2.csv", 240), ("nt_test2.csv", 40)):
        labels = np.arange(size) % 2
        profiles = draw.random((size, GENES)) + labels[:, None] * (np.arange(GENES) < 10)
        np.savetxt(folder / name, np.column_stack([labels, profiles]), fmt="%.5g", delimiter=",")


def main(root):
    draw = np.random.default_rng(1337)
    ten = root / "cifar10" / "cifar-10-batches-py"
    batches = {f"data_batch_{number}": 60 for number in range(1, 6)}
    cifar(ten, 10, "labels", batches | {"test_batch": 60}, draw)
    meta = {"label_names": [f"class {number}" for number in range(10)]}
    (ten / "batches.meta").write_bytes(pickle.dumps(meta))
    hundred = root / "cifar100" / "cifar-100-python"
    cifar(hundred, 100, "fine_labels", {"train": 300, "test": 100}, draw)
    meta = {"fine_label_names": [f"class {number}" for number in range(100)]}
    (hundred / "meta").write_bytes(pickle.dumps(meta))
    for label in range(len(WNIDS)):
        one_by_one(root / "imagefolder" / f"class{label}" / "{}.png", label, 60, 48, draw)
    tiny(root / "tinyimagenet" / "tiny-imagenet-200", draw)
    nt3(root / "nt3", draw)
    print(f"{root}: cifar10, cifar100, imagefolder, tinyimagenet, nt3; made up")


if __name__ == "__main__":
    if len(sys.argv) != 2 or Path(sys.argv[1]).exists():
        sys.exit("name a new folder: python make_data.py DIR")
    main(Path(sys.argv[1]))
