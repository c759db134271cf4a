"""Every data set gives (x, y, sample_id), by torchvision's own reading of the files; the digits are
scikit-learn's.
"""

from __future__ import annotations

import hashlib
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets as torchvision_datasets

from ecrl_cli.config.schema import DATASETS, DatasetConfig, ModelConfig
from ecrl_cli.data.datasets import REGISTRY, build_dataset
from ecrl_cli.data.loading import BatchLoader, augmented, inputs_hash
from ecrl_cli.data.nt3 import NT3WithIDs
from ecrl_cli.data.preflight import ARCHIVES
from ecrl_cli.data.sample_set import SampleSet
from ecrl_cli.data.tinyimagenet import TinyImageNetWithIDs
from ecrl_cli.errors import ConfigError, DatasetError
from ecrl_cli.models import build
from tests.unit.cifar_copy import PER_FILE, write_cifar10, write_cifar100


def images(root: Path) -> Path:
    """root/imagefolder with two classes of two images, of two sizes and modes."""
    folder = root / "imagefolder"
    for label in ("ants", "bees"):
        (folder / label).mkdir(parents=True)
        Image.new("RGB", (20, 10), (200, 0, 0)).save(folder / label / "a.png")
        Image.new("L", (9, 9), 77).save(folder / label / "b.png")
    return folder


def tiny_images(root: Path) -> Path:
    """root/tinyimagenet/tiny-imagenet-200 with two classes of two training pictures each, one of
    them grey, and three held out.
    """
    folder = root / "tinyimagenet" / "tiny-imagenet-200"
    for number, wnid in enumerate(("n02", "n01")):
        (folder / "train" / wnid / "images").mkdir(parents=True)
        Image.new("RGB", (64, 64), (200, 0, 0)).save(
            folder / "train" / wnid / "images" / f"{wnid}_0.JPEG"
        )
        Image.new("L", (64, 64), 60 + number).save(
            folder / "train" / wnid / "images" / f"{wnid}_1.JPEG"
        )
    (folder / "val" / "images").mkdir(parents=True)
    for name, shade in (("val_0", 10), ("val_1", 100), ("val_2", 200)):
        Image.new("RGB", (64, 64), (shade, shade, shade)).save(
            folder / "val" / "images" / f"{name}.JPEG"
        )
    rows = [("val_2.JPEG", "n01"), ("val_0.JPEG", "n02"), ("val_1.JPEG", "n01")]
    (folder / "val" / "val_annotations.txt").write_text(
        "".join(f"{name}\t{wnid}\t0\t0\t62\t62\n" for name, wnid in rows)
    )
    return folder


def profiles(root: Path) -> Path:
    """root/nt3 with three training profiles of 40 features and two test ones, among which is the
    largest value of the first feature.
    """
    folder = root / "nt3"
    folder.mkdir(parents=True)
    for name, rows in (
        ("nt_train2.csv", [[1, 2.0, -8.0], [0, 1.0, 4.0], [1, 0.0, 2.0]]),
        ("nt_test2.csv", [[0, 4.0, 1.0], [1, 2.0, 0.0]]),
    ):
        (folder / name).write_text(
            "".join(",".join(map(str, [*row, *range(38)])) + "\n" for row in rows)
        )
    return folder


def everything(dataset: SampleSet) -> tuple[np.ndarray, np.ndarray]:
    return dataset.fetch(np.arange(len(dataset)))


def copy_of(name: str, root: Path) -> DatasetConfig:
    writers = {
        "cifar10": write_cifar10,
        "cifar100": write_cifar100,
        "imagefolder": images,
        "tinyimagenet": tiny_images,
        "nt3": profiles,
    }
    if name in writers:
        writers[name](root)
    return DatasetConfig(
        name=name, root=str(root), checksum="none", download=False, size=30, image_size=16
    )


@pytest.mark.parametrize("name", DATASETS)
def test_every_data_set_gives_inputs_labels_and_ids(name: str, tmp_path: Path) -> None:
    dataset = build_dataset(copy_of(name, tmp_path))
    assert dataset.traits.name == name
    assert f"{type(dataset).__name__.lower()}" == f"{'fakedata' if name == 'fake' else name}withids"
    for sample_id in (0, len(dataset) - 1):
        x, y, given = dataset[sample_id]
        assert (x.dtype, tuple(x.shape), given) == (torch.float32, dataset.traits.shape, sample_id)
        assert 0 <= y < dataset.traits.classes
    backwards = np.arange(len(dataset))[::-1].copy()
    pixels, labels = dataset.fetch(backwards)
    assert np.array_equal(pixels[::-1], everything(dataset)[0])
    assert (str(pixels.dtype), str(labels.dtype)) == (
        "float32" if name == "nt3" else "uint8",
        "int64",
    )


@pytest.mark.parametrize("augment", [True, False])
@pytest.mark.parametrize("name", DATASETS)
def test_every_data_set_gives_batches_that_a_model_learns_from(
    name: str, augment: bool, tmp_path: Path
) -> None:
    dataset = build_dataset(copy_of(name, tmp_path))
    batch = BatchLoader(dataset, seed=1, augment=augment).batch(0, np.arange(3))
    assert batch.inputs_hash == inputs_hash(batch.x.numpy(), np.arange(3))
    scores = build(ModelConfig(width=4), dataset.traits.classes, dataset.traits.shape)(batch.x)
    torch.nn.functional.cross_entropy(scores, batch.y).backward()


def test_digits_are_those_of_scikit_learn() -> None:
    """Against digests of what `load_digits` of scikit-learn 1.9.1 returned, and of what ranks were
    served while it was read there.
    """
    dataset = build_dataset(DatasetConfig())
    pixels, labels = everything(dataset)
    assert (
        hashlib.sha256(pixels.tobytes()).hexdigest()
        == "8f26b2bd9d135c256808f68f14fdabddde6d9c7f869ae419704b051f0f14b3b3"
    )
    assert (
        hashlib.sha256(labels.tobytes()).hexdigest()
        == "a3c91c262eddcf7ba8f0e37507c30284493c9b20412ffe4af30d536401f7ba21"
    )
    served = BatchLoader(dataset, seed=1337, augment=True, digest="sha256").batch(
        3, np.arange(0, 1797, 7)
    )
    assert (
        served.inputs_hash
        == "sha256:694ce7cfef50748c3d829d1f94f67021489e0ab5172843a0fe234840d90fca95"
    )


def test_a_digit_is_shifted_but_never_mirrored() -> None:
    dataset = build_dataset(DatasetConfig())
    ids = np.arange(200)
    pixels, _ = dataset.fetch(ids)
    looks = augmented(pixels, 1, 0, ids, dataset.traits.flip)
    padded = np.pad(pixels, ((0, 0), (0, 0), (1, 1), (1, 1)))
    crops = [padded[:, :, top : top + 8, left : left + 8] for top in range(3) for left in range(3)]
    assert all(any(np.array_equal(look, crop[i]) for crop in crops) for i, look in enumerate(looks))


def test_digits_and_the_small_models_do_without_slow_imports() -> None:
    code = (
        "import sys\n"
        "from ecrl_cli.config.schema import DatasetConfig, ModelConfig\n"
        "from ecrl_cli.data.datasets import build_dataset\n"
        "from ecrl_cli.models import build\n"
        "assert 'torch' not in sys.modules\n"
        "build_dataset(DatasetConfig())\n"
        "[build(ModelConfig(name=name), 10, (1, 8, 8)) for name in ('small_cnn', 'vit')]\n"
        "sys.exit(' '.join({'torchvision', 'pandas'} & set(sys.modules)) or 0)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_a_cifar10_copy_is_read_whole_and_in_order(tmp_path: Path) -> None:
    dataset = build_dataset(copy_of("cifar10", tmp_path))
    pixels, labels = everything(dataset)
    assert labels.tolist() == [i % 10 for i in range(5 * PER_FILE)]
    rows = (np.arange(3072) + 3072 + 1000 * 2) % 251  # second row of data_batch_3
    assert np.array_equal(pixels[2 * PER_FILE + 1], rows.reshape(3, 32, 32))


def test_the_table_of_sums_is_torchvisions() -> None:
    for name, kind in (
        ("cifar10", torchvision_datasets.CIFAR10),
        ("cifar100", torchvision_datasets.CIFAR100),
    ):
        expected = dict(
            [*kind.train_list, *kind.test_list, [kind.meta["filename"], kind.meta["md5"]]]
        )
        ours = ARCHIVES[name]
        assert (ours.files, ours.folder, ours.url, ours.md5) == (
            expected,
            kind.base_folder,
            kind.url,
            kind.tgz_md5,
        )


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_a_copy_is_refused_where_the_official_sums_are_asked_for(name: str, tmp_path: Path) -> None:
    copy_of(name, tmp_path)
    with pytest.raises(
        DatasetError, match=r"md5 mismatch \(expected .*, got .*dataset\.checksum=none"
    ):
        build_dataset(DatasetConfig(name=name, root=str(tmp_path)))


def test_without_sums_a_missing_file_is_still_refused(tmp_path: Path) -> None:
    config = copy_of("cifar10", tmp_path)
    (tmp_path / "cifar10" / "cifar-10-batches-py" / "data_batch_4").unlink()
    with pytest.raises(DatasetError, match="data_batch_4 is missing"):
        build_dataset(config)


@pytest.mark.parametrize("damage", [b"", b"not a pickle", b"\x80\x02}q\x00."])
def test_without_sums_a_damaged_file_is_one_clear_line(damage: bytes, tmp_path: Path) -> None:
    config = copy_of("cifar10", tmp_path)
    (tmp_path / "cifar10" / "cifar-10-batches-py" / "data_batch_2").write_bytes(damage)
    with pytest.raises(DatasetError, match="cifar10 cannot be read"):
        build_dataset(config)


def test_labels_beyond_the_classes_are_refused(tmp_path: Path) -> None:
    write_cifar100(tmp_path).parent.rename(tmp_path / "elsewhere")
    config = copy_of("cifar10", tmp_path)
    # fine labels 4 to 7, read as cifar10: in range
    source = (tmp_path / "elsewhere" / "cifar-100-python" / "test").read_bytes()
    folder = tmp_path / "cifar10" / "cifar-10-batches-py"
    (folder / "data_batch_1").write_bytes(source.replace(b"K\x07", b"K\x0b"))
    with pytest.raises(DatasetError, match=r"not as many of each in 0\.\.9"):
        build_dataset(config)


def test_an_image_folder_is_resized_and_ordered_by_class_and_path(tmp_path: Path) -> None:
    dataset = build_dataset(copy_of("imagefolder", tmp_path))
    pixels, labels = everything(dataset)
    assert (pixels.shape, labels.tolist(), dataset.traits.classes) == (
        (4, 3, 16, 16),
        [0, 0, 1, 1],
        2,
    )
    assert pixels[2, :, 0, 0].tolist() == [200, 0, 0]
    assert pixels[3, :, 5, 5].tolist() == [77, 77, 77]


def test_a_damaged_image_is_named_with_its_sample(tmp_path: Path) -> None:
    config = copy_of("imagefolder", tmp_path)
    (tmp_path / "imagefolder" / "bees" / "a.png").write_bytes(b"nothing")
    with pytest.raises(DatasetError, match=r"bees/a\.png \(sample 2\) cannot be read"):
        everything(build_dataset(config))


def test_tiny_imagenet_is_ordered_by_class_and_its_validation_labels_come_from_the_annotations(
    tmp_path: Path,
) -> None:
    config = copy_of("tinyimagenet", tmp_path)
    train, held_out = TinyImageNetWithIDs(config), TinyImageNetWithIDs(config, "val")
    pixels, labels = everything(train)
    assert (pixels.shape, labels.tolist(), train.traits.classes) == (
        (4, 3, 64, 64),
        [0, 0, 1, 1],
        2,
    )
    assert abs(int(pixels[0, 0, 5, 5]) - 200) < 5 and abs(int(pixels[1, 2, 5, 5]) - 61) < 3
    pixels, labels = everything(held_out)
    assert (labels.tolist(), [int(shade) // 50 for shade in pixels[:, 0, 5, 5]]) == (
        [1, 0, 0],
        [0, 2, 4],
    )


def test_nt3_is_scaled_by_the_largest_value_of_both_files_with_the_label_first(
    tmp_path: Path,
) -> None:
    config = copy_of("nt3", tmp_path)
    values, labels = everything(NT3WithIDs(config))
    assert (values.shape, labels.tolist()) == ((3, 1, 1, 40), [1, 0, 1])
    assert values[:, 0, 0, :2].tolist() == [[0.5, -1.0], [0.25, 0.5], [0.0, 0.25]]
    assert not values[:, 0, 0, 2].any()  # a gene that is zero everywhere stays zero
    assert everything(NT3WithIDs(config, "test"))[1].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("name", "gone", "address"),
    [
        (
            "tinyimagenet",
            "tiny-imagenet-200/val/val_annotations.txt",
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        ),
        (
            "nt3",
            "nt_test2.csv",
            "http://ftp.mcs.anl.gov/pub/candle/public/benchmarks/Pilot1/normal-tumor/",
        ),
    ],
)
def test_what_is_missing_is_named_with_its_public_address(
    name: str, gone: str, address: str, tmp_path: Path
) -> None:
    config = copy_of(name, tmp_path)
    (tmp_path / name / gone).unlink()
    with pytest.raises(
        DatasetError,
        match=rf"{name} is not there: .*{gone.rpartition('/')[2]} is missing; .*{address}",
    ):
        build_dataset(config)


@pytest.mark.parametrize("damage", ["2,1.0,2.0\n", "a,b,c\n", "1,nan,2\n", "1\n", ""])
def test_a_damaged_profile_is_one_clear_line(damage: str, tmp_path: Path) -> None:
    config = copy_of("nt3", tmp_path)
    (tmp_path / "nt3" / "nt_train2.csv").write_text(damage)
    with pytest.raises(DatasetError, match=r"nt3: .*restore the files"):
        build_dataset(config)


def test_an_annotation_of_an_unknown_class_or_a_picture_of_another_size_is_refused(
    tmp_path: Path,
) -> None:
    config = copy_of("tinyimagenet", tmp_path)
    folder = tmp_path / "tinyimagenet" / "tiny-imagenet-200"
    Image.new("RGB", (32, 32)).save(folder / "train" / "n01" / "images" / "n01_0.JPEG")
    with pytest.raises(DatasetError, match="is 32 x 32 pixels, not 64 x 64"):
        everything(build_dataset(config))
    (folder / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn03\n")
    with pytest.raises(DatasetError, match="names no class of train/"):
        TinyImageNetWithIDs(config, "val")


def test_fake_samples_depend_on_their_id_only() -> None:
    dataset = build_dataset(
        DatasetConfig(name="fake", size=30, classes=7, image_size=8, channels=1)
    )
    again = build_dataset(DatasetConfig(name="fake", size=30, classes=7, image_size=8, channels=1))
    torch.manual_seed(99)
    one, _ = dataset.fetch(np.array([11, 4]))
    other, _ = again.fetch(np.array([4]))
    assert np.array_equal(one[1], other[0])
    assert not np.array_equal(one[0], one[1])
    assert len(set(everything(dataset)[1].tolist())) > 3


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(
        ConfigError,
        match=(
            r"unknown dataset 'cifar11'; did you mean cifar10\? known: digits, cifar10,"
            r" .*tinyimagenet, nt3, fake"
        ),
    ):
        REGISTRY.load("cifar11")


def test_the_examples_write_every_data_set_in_its_official_layout(tmp_path: Path) -> None:
    """A user without the archives can try each row of the table of data sets."""
    script = Path(__file__).parents[2] / "examples" / "make_data.py"
    namespace = runpy.run_path(str(script))
    namespace["main"](tmp_path / "data")
    sizes = {"cifar10": 300, "cifar100": 300, "imagefolder": 240, "tinyimagenet": 240, "nt3": 240}
    classes = {"cifar10": 10, "cifar100": 100, "imagefolder": 4, "tinyimagenet": 4, "nt3": 2}
    for name, size in sizes.items():
        config = DatasetConfig(name=name, root=str(tmp_path / "data"), checksum="none")
        made = build_dataset(config)
        assert (len(made), made.traits.classes) == (size, classes[name])
        x, y = made.fetch(np.arange(size))
        # the classes can be learnt: the nearest mean of half of them tells most of the others
        flat = x.reshape(size, -1).astype(np.float64)
        known, others = np.split(np.random.default_rng(0).permutation(size), [size * 2 // 3])
        found = np.unique(y[known])
        means = np.stack([flat[known][y[known] == label].mean(0) for label in found])
        told = found[((flat[others, None] - means) ** 2).sum(-1).argmin(1)]
        assert np.mean(told == y[others]) > 0.6, name
