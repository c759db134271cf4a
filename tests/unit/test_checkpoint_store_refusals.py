"""What the store and its log do where others refuse: errors of the file system, a full disk, a
second writer.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.checkpoint.repair.scrub import scrub
from ecrl_cli.checkpoint.store import catalog
from ecrl_cli.checkpoint.store.checkpoint_log import CheckpointLog, save_and_record, submitted
from ecrl_cli.checkpoint.store.fencing import FencingToken
from ecrl_cli.checkpoint.store.integrity import CheckpointRejected, IntegrityReport, layer
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.config.codec import encode
from ecrl_cli.errors import CheckpointConflict, EcrlError, Fenced, StorageError
from ecrl_cli.records.events import CheckpointLine
from ecrl_cli.records.journal import Journal, read_journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import AttemptSpec
from ecrl_cli.storage.files import write_json
from ecrl_cli.storage.fs import PosixFs
from tests.unit.checkpoint_support import CONFIG, commit, image, store_at

# The log of the checkpoints


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    layout = RunLayout(tmp_path / "run")
    layout.checkpoints.parent.mkdir()
    return layout


def log_of(layout: RunLayout, attempt: int = 0) -> CheckpointLog:
    folder = layout.attempt(attempt).folder
    folder.mkdir(parents=True, exist_ok=True)
    return CheckpointLog(Journal(layout.attempt(attempt).checkpoints), layout, attempt)


def lines(layout: RunLayout, attempt: int = 0) -> list[tuple[str, int, str]]:
    events = read_journal(layout.attempt(attempt).checkpoints, CheckpointLine).events
    return [(line.event, line.global_step, line.reason or "") for line in events]


@pytest.mark.parametrize(
    ("orders", "logged", "expected"),
    [
        ([(6, None)], {}, False),
        ([(6, None), (6, 0)], {0: 6}, True),
        ([(6, None), (6, 0)], {0: 5}, False),
        ([(6, None), (6, 0), (6, 1)], {0: 6}, True),
        ([(6, None), (8, 0), (6, 1)], {0: 6}, False),
        ([(6, None), (6, 0), (6, 1)], {1: 6}, True),
        ([(6, None), (6, 1), (6, 1)], {}, False),
    ],
    ids=[
        "nothing continued",
        "the one before",
        "another step",
        "two before",
        "beyond one that began elsewhere",
        "the nearer one",
        "one of itself",
    ],
)
def test_whether_an_attempt_gone_on_with_has_submitted_the_step(
    layout: RunLayout, orders: list[tuple[int, int | None]], logged: dict[int, int], expected: bool
) -> None:
    made = [
        AttemptSpec(number, 1, step, None, 0, (), continues=before)
        for number, (step, before) in enumerate(orders)
    ]
    for order in made:
        log = log_of(layout, order.attempt)
        write_json(layout.attempt(order.attempt).launch, encode(order))
        if order.attempt in logged:
            log.write("submitted", logged[order.attempt])
        log.close()
    assert submitted(layout, made[-1]) == expected


class Refusing(PosixFs):
    """Refuses one kind of call with an errno."""

    def __init__(self, call: str, number: int, times: int = 10**6) -> None:
        super().__init__()
        self.number, self.times = number, times
        setattr(self, call, self._refuse)

    def _refuse(self, *arguments: Any, **named: Any) -> Any:
        if self.times:
            self.times -= 1
            raise StorageError.of("call", "it", OSError(self.number, "refused"))
        raise AssertionError("called more often than it was to be refused")


@pytest.mark.parametrize(
    ("number", "retires"), [(errno.ENOSPC, 1), (errno.EDQUOT, 1), (errno.EIO, 0)]
)
def test_only_a_full_disk_makes_a_failed_save_retire(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch, number: int, retires: int
) -> None:
    store, log, asked = store_at(layout.root), log_of(layout), list[int]()

    def save(*arguments: Any) -> Any:
        raise StorageError.of("write", "it", OSError(number, "no"))

    monkeypatch.setattr(store, "save", save)
    monkeypatch.setattr(store, "retire", lambda: asked.append(1) or ())
    assert save_and_record(store, image(6), 0, log) is False
    assert (
        len(asked) == retires
        and [line[:2] for line in lines(layout)] == [("failed", 6)]
        and "step 6 was not saved" in log.failure
    )


def test_a_pointer_that_cannot_be_moved_is_on_record_beside_the_commit_until_one_can(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, log, right = store_at(layout.root), log_of(layout), CheckpointStore.point

    def refused(*arguments: Any) -> Any:
        raise StorageError.of("link", "it", OSError(errno.EIO, "no"))

    monkeypatch.setattr(CheckpointStore, "point", refused)
    assert save_and_record(store, image(6), 0, log) is True and log.failure == ""
    monkeypatch.setattr(CheckpointStore, "point", right)
    assert save_and_record(store, image(12), 0, log) is True
    assert [line[:2] for line in lines(layout)] == [
        ("committed", 6),
        ("pointer_failed", 6),
        ("committed", 12),
    ] and "EIO" in lines(layout)[1][2]


def test_a_defect_in_a_save_is_an_outcome_on_record(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, log = store_at(layout.root), log_of(layout)
    monkeypatch.setattr(store, "save", lambda *arguments: [][0])
    assert save_and_record(store, image(6), 0, log) is False
    ((event, step, reason),) = lines(layout)
    assert (event, step) == ("failed", 6) and "IndexError" in reason and "IndexError" in log.failure


def test_an_attempt_that_is_fenced_logs_it_and_ends(layout: RunLayout) -> None:
    store, log = store_at(layout.root), log_of(layout)
    store_at(layout.root, attempt=1)
    with pytest.raises(Fenced):
        save_and_record(store, image(6), 0, log)
    assert [line[:2] for line in lines(layout)] == [("failed", 6)]


@pytest.mark.parametrize(
    ("events", "curable", "raised"),
    [
        ((), False, None),
        (("committed",), False, None),
        (("submitted", "committed"), False, None),
        (("submitted",), False, StorageError),
        (("submitted",), True, EcrlError),
        (("submitted", "failed"), False, StorageError),
    ],
)
def test_a_last_step_that_was_submitted_must_be_committed(
    layout: RunLayout, events: tuple[str, ...], curable: bool, raised: type[EcrlError] | None
) -> None:
    log = log_of(layout)
    log.write("submitted", 5)
    for event in events:
        log.write(event, 6, reason="why" if event == "failed" else None)
    if raised is None:
        log.confirm(6, curable=curable)
        return
    with pytest.raises(
        raised, match=r"\(why\)" if "failed" in events else "the background writer has ended"
    ) as error:
        log.confirm(6, curable=curable)
    assert type(error.value) is raised and error.value.code == (
        "unsaved" if curable else StorageError.code
    )


# The store, where the file system refuses


def test_a_folder_that_is_not_there_holds_no_checkpoint_and_one_that_cannot_be_listed_is_an_error(
    tmp_path: Path,
) -> None:
    assert catalog.entries(PosixFs(), tmp_path / "none") == []
    with pytest.raises(StorageError, match="EACCES"):
        catalog.entries(Refusing("listdir", errno.EACCES), tmp_path)


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ESTALE])
def test_a_listing_that_a_network_file_system_refuses_is_tried_again_once(
    tmp_path: Path, number: int
) -> None:
    commit(store_at(tmp_path), 6)
    fs, listed = PosixFs(), list[int]()

    def late(path: Path) -> list[str]:
        listed.append(1)
        if len(listed) == 1:
            raise StorageError.of("list", "it", OSError(number, "late"))
        return PosixFs().listdir(path)

    fs.listdir = late  # type: ignore[method-assign]
    assert [entry.global_step for entry in catalog.entries(fs, tmp_path / "checkpoints")] == [
        6
    ] and len(listed) == 2


def test_a_listing_that_stays_stale_is_an_error_and_a_folder_that_stays_away_is_empty(
    tmp_path: Path,
) -> None:
    assert catalog.entries(Refusing("listdir", errno.ENOENT, 2), tmp_path) == []
    with pytest.raises(StorageError, match="ESTALE"):
        catalog.entries(Refusing("listdir", errno.ESTALE, 2), tmp_path)


def test_the_name_of_no_checkpoint_is_no_entry(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="step_6 is not a checkpoint's name"):
        catalog.entry_of(tmp_path / "step_6")


@pytest.mark.parametrize("older", [[], [3]], ids=["the only one", "one of two"])
def test_a_search_begins_again_where_the_folder_has_changed_meanwhile(
    tmp_path: Path, older: list[int]
) -> None:
    """While the newest one is refused, a writer commits another one."""
    store = store_at(tmp_path)
    for step in (*older, 6):
        commit(store, step)
    (store.root / "step_00000006" / "COMMIT.json").write_text("{}")
    looked: list[str] = []

    def examine(path: Path) -> IntegrityReport:
        looked.append(path.name)
        if len(looked) == 1:
            commit(store, 12)
        return store.verify(path)

    choice = catalog.newest_valid(store.fs, store.root, examine)
    assert choice.report is not None and choice.report.global_step == 12 and choice.rejected == ()
    assert looked == ["step_00000006", *(f"step_{step:08d}" for step in older), "step_00000012"]


@pytest.mark.parametrize(
    "number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN]
)
def test_what_this_process_lacks_is_no_reason_to_take_an_older_one(
    tmp_path: Path, number: int
) -> None:
    store = store_at(tmp_path)
    commit(store, 6)
    store.fs = Refusing("open_at", number)
    with pytest.raises(StorageError):
        store.newest_valid()


def test_a_checkpoint_that_cannot_be_moved_is_not_quarantined(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    saved = commit(store, 6)
    with pytest.raises(StorageError, match="EACCES"):
        catalog.quarantine(Refusing("rename", errno.EACCES), catalog.entry_of(saved.path))
    assert catalog.quarantine(Refusing("rename", errno.ENOENT), catalog.entry_of(saved.path)) == ()


def test_a_store_whose_folder_cannot_be_made_is_not_claimed(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", fs=Refusing("mkdir", errno.EROFS))
    with pytest.raises(StorageError, match="EROFS"):
        store.claim(0)


def test_a_name_that_cannot_be_looked_up_is_neither_free_nor_taken(tmp_path: Path) -> None:
    class Unseen(PosixFs):
        def stat(self, path: Path) -> Any:
            if path.name.startswith(("step_", "latest")):
                raise StorageError.of("stat", path.name, OSError(errno.EIO, "no"))
            return super().stat(path)

    store = store_at(tmp_path, fs=Unseen())
    with pytest.raises(StorageError, match="stat: EIO at step_00000006"):
        store.save(image(6), 0)
    assert [path.name for path in store.root.iterdir()] == [".attempt"]
    commit(store_at(tmp_path), 6)
    assert scrub(store.root).pointers == ()
    said = scrub(store.root, fs=Unseen()).pointers
    assert [text.partition(" (")[0] for text in said] == [
        "latest.json is damaged",
        "latest_ok is damaged",
    ] and all("EIO" in text for text in said)


def test_a_lease_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path) -> None:
    store_at(tmp_path)
    token = FencingToken(Refusing("open_at", errno.EIO), tmp_path / "checkpoints")
    with pytest.raises(StorageError, match="EIO"):
        token.check(0)


@pytest.mark.parametrize("same", [True, False])
def test_a_name_that_was_taken_during_a_save_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    """Two writers of one attempt: what the other one installed is the same state, or another
    one.
    """
    store, other = store_at(tmp_path), store_at(tmp_path)
    made = image(6) if same else replace(image(6), memory=image(6, seed=2).memory)
    store.crash_point = lambda name: commit_beside(name)

    def commit_beside(name: str) -> None:
        if name == "before_rename":
            other.save(image(6), 0)

    if same:
        saved = store.save(made, 0)
        assert (
            saved.commit_sha256 == other.verify(saved.path).commit_sha256 and saved.write_s == 0.0
        )
    else:
        with pytest.raises(CheckpointConflict, match="of attempt 0 holds another state"):
            store.save(made, 0)
    assert [
        path.name for path in sorted(store.root.iterdir()) if not path.name.startswith(".attempt")
    ] == ["step_00000006"]


def test_a_single_file_that_another_writer_has_put_in_its_place_is_not_taken_back(
    tmp_path: Path,
) -> None:
    """The other one finds a file without its sidecar, sets it aside and commits its own."""
    store, other = store_at(tmp_path), store_at(tmp_path)

    def commit_beside(name: str) -> None:
        if name == "between_renames":
            other.save(image(6, single=True), 0)

    store.crash_point = commit_beside
    saved = store.save(image(6, single=True), 0)
    assert other.verify(saved.path).ok


def test_what_a_newer_attempt_may_have_chosen_is_not_taken_back(tmp_path: Path) -> None:
    """It claims the store while the name of a save is made durable, which fails."""

    class Unsynced(PosixFs):
        def fsyncdir(self, path: Path) -> None:
            if path.name == "checkpoints":
                newer.claim(1)
                raise StorageError.of("fsync of the directory", str(path), OSError(errno.EIO, "no"))
            super().fsyncdir(path)

    newer = store_at(tmp_path)
    store = CheckpointStore(newer.root, CONFIG, Unsynced())
    with pytest.raises(Fenced):
        store.save(image(6), 0)
    assert newer.verify(newer.root / "step_00000006").ok


def test_memory_that_does_not_suffice_is_a_reason_to_refuse() -> None:
    with (
        pytest.raises(CheckpointRejected, match="tensors: does not fit into memory"),
        layer("tensors"),
    ):
        raise MemoryError


PARTS = ("model.safetensors", "optimizer.safetensors", "rng.safetensors", "train.json")
WRITTEN = [point for name in PARTS for point in (f"half_part:{name}", f"after_part:{name}")]
POINTED = [
    f"{when}_{what}"
    for when, what in (("before", "pointer"), ("before", "pointer_rename"), ("between", "pointers"))
]
POINTED += ["before_link_rename", "before_pointer_sync", "after_pointer"]
TRASHED = ["before_trash", "half_trash", "after_trash"]


def test_a_group_passes_every_point_at_which_a_writer_may_die_in_order(tmp_path: Path) -> None:
    store, passed = store_at(tmp_path), list[str]()
    for step in (6, 12):
        commit(store, step)
    store.crash_point = passed.append
    commit(store, 18)
    written = [
        "before_stage",
        *WRITTEN,
        "before_manifest",
        "half_manifest",
        "before_commit",
        "half_commit",
        "after_commit",
    ]
    installed = ["before_stage_sync", "before_rename", "after_rename", "after_root_sync"]
    assert passed == [*written, *installed, *POINTED, *TRASHED]


def test_a_single_file_passes_its_points_in_order(tmp_path: Path) -> None:
    store, passed, name = store_at(tmp_path), list[str](), "step_00000018.safetensors"
    for step in (6, 12):
        commit(store, step, single=True)
    store.crash_point = passed.append
    commit(store, 18, single=True)
    written = [
        "before_stage",
        f"half_part:{name}",
        f"after_part:{name}",
        "before_commit",
        "half_commit",
        "after_commit",
    ]
    assert passed == [
        *written,
        "before_rename",
        "between_renames",
        "after_rename",
        "after_root_sync",
        *POINTED,
        *TRASHED,
    ]
