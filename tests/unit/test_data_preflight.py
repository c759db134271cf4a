"""A missing or damaged data set is one clear line before anything starts, without torch."""

from __future__ import annotations

import dataclasses
import hashlib
import tarfile
from pathlib import Path

import pytest

from ecrl_cli.config.schema import DatasetConfig
from ecrl_cli.data.preflight import ARCHIVES, check, known_size, prepare
from ecrl_cli.errors import DatasetError
from tests.unit.cifar_copy import write_cifar10


def config(root: Path, **fields: object) -> DatasetConfig:
    return dataclasses.replace(
        DatasetConfig(name="cifar10", root=str(root), download=False), **fields
    )  # type: ignore[arg-type]


def official(monkeypatch: pytest.MonkeyPatch, folder: Path, archive: Path | None = None) -> None:
    """Make the files in `folder` (and `archive`) the official ones."""
    sums = {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    ours = dataclasses.replace(ARCHIVES["cifar10"], files=sums)
    if archive:
        ours = dataclasses.replace(
            ours, url=archive.as_uri(), md5=hashlib.md5(archive.read_bytes()).hexdigest()
        )
    monkeypatch.setitem(ARCHIVES, "cifar10", ours)


def packed(folder: Path, path: Path) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        tar.add(folder, arcname=folder.name)
    return path


def images(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")


def test_a_missing_data_set_names_the_folder_and_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(DatasetError) as caught:
        check(config(tmp_path))
    assert str(tmp_path / "cifar10" / "cifar-10-batches-py") in caught.value.line()
    assert "dataset.download=true" in caught.value.remedy
    assert caught.value.exit_code == 2


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    (write_cifar10(tmp_path) / "batches.meta").unlink()
    with pytest.raises(DatasetError, match=r"batches\.meta is missing"):
        check(config(tmp_path, checksum="none"))


def test_the_official_sums_pass_and_one_changed_byte_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_cifar10(tmp_path)
    official(monkeypatch, folder)
    check(config(tmp_path))
    path = folder / "test_batch"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    expected, got = (
        ARCHIVES["cifar10"].files["test_batch"],
        hashlib.md5(path.read_bytes()).hexdigest(),
    )
    with pytest.raises(DatasetError) as caught:
        check(config(tmp_path))
    assert f"{path} md5 mismatch (expected {expected}, got {got})" in caught.value.fact
    assert "dataset.checksum=none" in caught.value.remedy
    check(config(tmp_path, checksum="none"))


def test_a_folder_that_may_not_be_read_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "cifar10").write_text("a file where a folder should be")
    with pytest.raises(DatasetError):
        check(config(tmp_path))


@pytest.mark.parametrize("name", ["digits", "fake"])
def test_what_needs_no_files_is_always_there(name: str, tmp_path: Path) -> None:
    check(config(tmp_path / "missing", name=name))


def test_an_image_folder_needs_two_classes_with_images(tmp_path: Path) -> None:
    folder, wanted = tmp_path / "imagefolder", config(tmp_path, name="imagefolder")
    with pytest.raises(DatasetError, match="no folder"):
        check(wanted)
    images(folder, "ants/a.png", "ants/deeper/b.JPG", "ants/notes.txt")
    with pytest.raises(DatasetError, match="1 class folders, need 2"):
        check(wanted)
    images(folder, "bees/readme")
    with pytest.raises(DatasetError, match="bees holds no image"):
        check(wanted)
    images(folder, "bees/c.webp")
    check(wanted)
    assert known_size(wanted) == 3


def test_an_image_folder_with_a_train_folder_means_that(tmp_path: Path) -> None:
    images(tmp_path / "imagefolder", "train/ants/a.png", "train/bees/a.png", "val/ants/a.png")
    check(config(tmp_path, name="imagefolder"))
    assert known_size(config(tmp_path, name="imagefolder")) == 2


def test_known_sizes(tmp_path: Path) -> None:
    assert known_size(config(tmp_path, name="digits")) == 1797
    assert known_size(config(tmp_path, name="fake", size=33)) == 33
    assert known_size(config(tmp_path, name="cifar100")) == 50_000
    assert known_size(config(tmp_path, checksum="none")) is None


def test_what_is_missing_is_downloaded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_cifar10(tmp_path / "source")
    official(monkeypatch, source, packed(source, tmp_path / "archive.tar.gz"))
    home, lines = tmp_path / "data", list[str]()
    prepare(config(home, download=True), lines.append)
    prepare(config(home, download=True), lines.append)
    assert {
        path.name: path.read_bytes() for path in (home / "cifar10" / source.name).iterdir()
    } == {p.name: p.read_bytes() for p in source.iterdir()}
    assert len(lines) == 1


def test_a_download_with_another_sum_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_cifar10(tmp_path / "source")
    archive = packed(source, tmp_path / "archive.tar.gz")
    official(monkeypatch, source, archive)
    archive.write_bytes(archive.read_bytes() + b"!")
    with pytest.raises(DatasetError, match="md5 mismatch"):
        prepare(config(tmp_path / "data", download=True))
    assert not (tmp_path / "data").exists()


def test_without_a_network_the_folder_and_the_way_out_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_cifar10(tmp_path / "source")
    archive = packed(source, tmp_path / "archive.tar.gz")
    official(monkeypatch, source, archive)
    archive.unlink()
    with pytest.raises(DatasetError) as caught:
        prepare(config(tmp_path / "data", download=True))
    assert str(tmp_path / "data" / "cifar10" / source.name) in caught.value.line()
    assert "cannot be downloaded" in caught.value.fact
    assert "dataset.root" in caught.value.remedy
    assert not (tmp_path / "data").exists()


def test_a_damaged_copy_is_not_overwritten_by_a_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_cifar10(tmp_path / "source")
    official(monkeypatch, source, packed(source, tmp_path / "archive.tar.gz"))
    mine = write_cifar10(tmp_path / "mine")
    (mine / "test_batch").write_bytes(b"mine")
    with pytest.raises(DatasetError, match="md5 mismatch"):
        prepare(config(tmp_path / "mine", download=True))
    assert (mine / "test_batch").read_bytes() == b"mine"
