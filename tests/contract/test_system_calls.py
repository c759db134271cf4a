"""What the kernel is asked for during a save, seen by strace: the order that the protocol promises,
and nothing beside the seam.

Without the second part every study behind the seam would prove something about another program.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.needs import require

CELLS = [
    (layout, mode)
    for layout in ("group", "single")
    for mode in ("unsafe", "atomic_nodirsync", "atomic_dirsync")
]
CHANGING = (
    "openat open creat mkdir mkdirat rename renameat renameat2 symlink symlinkat link linkat unlink"
    " unlinkat rmdir write pwrite64 writev pwritev pwritev2 fsync fdatasync sync syncfs"
    " sync_file_range truncate ftruncate fallocate copy_file_range sendfile splice chmod fchmod"
    " fchmodat utimensat"
).split()
BEGIN, ACKNOWLEDGED, SETTLED = "begin", "acknowledged", "settled"

# Two checkpoints are there before the one that is looked at: retention has one to remove. Over a
# megabyte of model: direct I/O, where there is.
SAVER = """
import json, os, sys
from pathlib import Path
from ecrl_cli.checkpoint.store.integrity import IntegrityConfig
from ecrl_cli.checkpoint.store.store import CheckpointStore, StoreConfig
from ecrl_cli.checkpoint.store.synthetic import RUN_ID, synthetic_image, synthetic_plan
from tests.recording_fs import RecordingFs
from ecrl_cli.studies.frame.store_fixture import write_mode

root, layout, mode = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
fs, plan = RecordingFs(), synthetic_plan(1_500_000, 20_000, single=layout == "single")
integrity = IntegrityConfig(run_id=RUN_ID)
store = CheckpointStore(root, StoreConfig(mode=write_mode(mode), keep=2, integrity=integrity), fs)
store.claim(0)
for step in (10, 20):
    store.save(synthetic_image(1, step, plan), 0)
image = synthetic_image(1, 30, plan)
os.write(2, b"begin")
saved = store.save(image, 0)
os.write(2, b"acknowledged")
store.update_pointers_and_retire(saved, image)
os.write(2, b"settled")
store.close()
def target(call):
    return call.target if call.name == "rename" else ""
print(json.dumps([[call.name, str(call.path), target(call), call.size] for call in fs.calls]))
"""


@dataclass(frozen=True)
class Event:
    """A call that changes or syncs something in the run directory; or one of the three marks, with
    an empty path.
    """

    name: str
    path: str = ""
    target: str = ""
    size: int = 0

    @property
    def file(self) -> str:
        return Path(self.path).name


@dataclass(frozen=True)
class Trace:
    """`kernel`: what strace saw, marks included; `seam`: what the store's back end wrote down."""

    root: Path
    kernel: tuple[Event, ...]
    seam: tuple[Event, ...]

    def between(self, first: str, last: str) -> list[Event]:
        names = [event.name for event in self.kernel]
        return list(self.kernel[names.index(first) + 1 : names.index(last)])


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Trace]:
    """One traced save per layout and write mode, made when first asked for."""
    require("strace")
    return _Traces(tmp_path_factory)


class _Traces(dict[tuple[str, str], Trace]):
    def __init__(self, folders: pytest.TempPathFactory) -> None:
        super().__init__()
        self._folders = folders

    def __missing__(self, cell: tuple[str, str]) -> Trace:
        self[cell] = traced(self._folders.mktemp("run"), *cell)
        return self[cell]


def traced(run: Path, layout: str, mode: str) -> Trace:
    root, log = run / "checkpoints", run.with_name(run.name + ".strace")
    command = [
        "strace",
        "-f",
        "--seccomp-bpf",
        "-y",
        "-s",
        "16",
        "-o",
        str(log),
        "-e",
        "trace=" + ",".join(f"?{name}" for name in CHANGING),
    ]
    saver, here = [sys.executable, "-c", SAVER, str(root), layout, mode], Path(__file__).parents[2]
    # SAVER imports from tests/
    done = subprocess.run([*command, *saver], capture_output=True, text=True, check=False, cwd=here)
    assert done.returncode == 0, done.stderr[-2000:]
    seam = tuple(
        Event(name, path, target, size) for name, path, target, size in json.loads(done.stdout)
    )
    return Trace(root, tuple(events(log.read_text(), run)), seam)


def events(log: str, run: Path) -> list[Event]:
    """The changing calls inside `run`, in the order in which they returned."""
    unfinished: dict[str, str] = {}
    folders, found = {str(run)}, []
    for line in log.splitlines():
        pid, _, call = line.partition(" ")
        call = call.strip()
        if call.endswith("<unfinished ...>"):
            unfinished[pid] = call.removesuffix("<unfinished ...>")
            continue
        if call.startswith("<..."):
            call = unfinished.pop(pid) + call.partition("resumed>")[2]
        if (event := event_of(call, run, folders)) is not None:
            found.append(event)
    return found


def event_of(call: str, run: Path, folders: set[str]) -> Event | None:
    match = re.match(r"(\w+)\((.*)\) += (-?\d+)", call)
    if match is None:  # an exit, or a signal
        return None
    name, arguments, result = match[1], match[2], int(match[3])
    on, paths = re.match(r"(\d+)<([^>]*)>", arguments), re.findall(r'"([^"]*)"', arguments)
    if name == "write" and on and on[1] == "2":
        return Event(paths[0]) if paths and paths[0] in (BEGIN, ACKNOWLEDGED, SETTLED) else None
    where = on[2] if on else next(iter(paths), "")
    if not (where if name not in ("symlink", "symlinkat") else paths[1]).startswith(str(run)):
        return None
    if name in ("openat", "open", "creat"):
        return Event("create", paths[0]) if "O_CREAT" in arguments or name == "creat" else None
    if name in ("mkdir", "mkdirat"):
        folders.add(paths[0])
        return Event("mkdir", paths[0])
    if name in ("rename", "renameat", "renameat2"):
        return Event("rename", paths[0], paths[1])
    if name in ("symlink", "symlinkat"):
        return Event("symlink", paths[1])
    if name in ("fsync", "fdatasync"):
        return Event("fsyncdir" if where in folders else "fsync", where)
    return Event(name, where, size=result if name == "write" else 0)


def fault_in(trace: list[Event], root: Path, layout: str, mode: str) -> str:
    """The first rule of the protocol that the calls between `begin` and `acknowledged` break; empty
    where they keep all.
    """
    place = {(event.name, event.file): number for number, event in enumerate(trace)}
    rename = [number for number, event in enumerate(trace) if event.name == "rename"]
    synced = [event for event in trace if event.name in ("fsync", "fsyncdir")]
    if mode == "unsafe":
        return "unsafe syncs or renames" if synced or rename else ""
    files = [event.path for event in trace if event.name == "create"]
    for path in files:
        writes = [
            number
            for number, event in enumerate(trace)
            if event.name == "write" and event.path == path
        ]
        syncs = [
            number
            for number, event in enumerate(trace)
            if event.name == "fsync" and event.path == path
        ]
        if len(syncs) != 1 or not writes or syncs[0] < writes[-1] or syncs[0] > rename[0]:
            return (
                f"{Path(path).name} is not synced once, after its last write and before the first"
                " rename"
            )
    if layout == "group":
        fault = _group_fault(place, [Path(path).name for path in files])
    else:
        fault = (
            ""
            if [Path(trace[n].target).suffix for n in rename] == [".safetensors", ".json"]
            else "the sidecar is not renamed last"
        )
    if fault:
        return fault
    if mode == "atomic_nodirsync":
        return "a folder is synced" if any(event.name == "fsyncdir" for event in trace) else ""
    stages = [event.path for event in trace if event.name == "mkdir"]
    due = [*stages, str(root)]
    where = [number for number, event in enumerate(trace) if event.name == "fsyncdir"]
    if [trace[number].path for number in where] != due or where[-1] < rename[-1]:
        return "the folders are not synced once each, or the root not after the rename"
    if stages and not place["fsync", "COMMIT.json"] < where[0] < rename[0]:
        return "the stage is not synced between the last of its files and the rename"
    return ""


def _group_fault(place: dict[tuple[str, str], int], files: list[str]) -> str:
    parts = [name for name in files if name not in ("MANIFEST.json", "COMMIT.json")]
    if (
        len(parts) != 4
        or max(place["fsync", name] for name in parts) > place["fsync", "MANIFEST.json"]
    ):
        return "a part is not synced before the manifest"
    if place["fsync", "MANIFEST.json"] > place["create", "COMMIT.json"]:
        return "the manifest is not synced before the commit is made"
    return ""


@pytest.mark.parametrize(("layout", "mode"), CELLS)
def test_the_kernel_is_asked_in_the_order_of_the_protocol(
    traces: dict[tuple[str, str], Trace], layout: str, mode: str
) -> None:
    trace = traces[layout, mode]
    assert fault_in(trace.between(BEGIN, ACKNOWLEDGED), trace.root, layout, mode) == ""


@pytest.mark.parametrize("layout", ["group", "single"])
def test_a_protocol_without_any_one_of_its_syncs_is_noticed(
    traces: dict[tuple[str, str], Trace], layout: str
) -> None:
    trace = traces[layout, "atomic_dirsync"]
    save = trace.between(BEGIN, ACKNOWLEDGED)
    needed = [number for number, event in enumerate(save) if event.name in ("fsync", "fsyncdir")]
    assert len(needed) == (8 if layout == "group" else 3)
    for number in needed:
        assert fault_in(save[:number] + save[number + 1 :], trace.root, layout, "atomic_dirsync"), (
            save[number]
        )
        assert fault_in(
            [*save[:number], *save[number + 1 :], save[number]],
            trace.root,
            layout,
            "atomic_dirsync",
        ) or save[number].path == str(trace.root)
        assert fault_in(
            [save[number], *save[:number], *save[number + 1 :]],
            trace.root,
            layout,
            "atomic_dirsync",
        ), save[number]


@pytest.mark.parametrize(("layout", "mode"), CELLS)
def test_pointers_and_retention_come_after_the_acknowledgement(
    traces: dict[tuple[str, str], Trace], layout: str, mode: str
) -> None:
    trace = traces[layout, mode]
    save, after = trace.between(BEGIN, ACKNOWLEDGED), trace.between(ACKNOWLEDGED, SETTLED)
    hints = [
        event
        for event in save
        if "latest" in event.path + event.target
        or ".trash_" in event.path + event.target
        or event.name == "unlink"
    ]
    assert hints == []
    order = [
        (event.name, Path(event.target or event.path).name.partition(".")[0])
        for event in after
        if event.name == "rename"
    ]
    assert order[:2] == [("rename", "latest"), ("rename", "latest_ok")]
    gone = [
        event.file
        for event in after
        if event.name == "unlink" and (layout == "single" or Path(event.path).parent != trace.root)
    ]
    assert gone and gone[0].endswith("COMMIT.json" if layout == "group" else ".json")
    assert any(event.name == "fsyncdir" for event in after) == (mode == "atomic_dirsync")
    assert any(event.name == "fsync" for event in after) == (mode != "unsafe")


@pytest.mark.parametrize("mode", ["unsafe", "atomic_dirsync"])
def test_the_folder_and_the_lease_are_durable_before_the_first_save_in_every_mode(
    traces: dict[tuple[str, str], Trace], mode: str
) -> None:
    trace = traces["group", mode]
    names = [
        (event.name, event.path if event.name != "rename" else event.target)
        for event in trace.kernel
    ]
    lease = str(trace.root / ".attempt")
    claim = [
        ("mkdir", str(trace.root)),
        ("fsyncdir", str(trace.root.parent)),
        ("rename", lease),
        ("fsyncdir", str(trace.root)),
    ]
    places = [names.index(step) for step in claim]
    assert places == sorted(places)
    (temporary,) = (
        event.path for event in trace.kernel if event.name == "rename" and event.target == lease
    )
    assert places[1] < names.index(("fsync", temporary)) < places[2]
    stage = next(
        number
        for number, (name, path) in enumerate(names)
        if name == "mkdir" and path != str(trace.root)
    )
    assert places[-1] < stage


@pytest.mark.parametrize(("layout", "mode"), CELLS)
def test_every_changing_call_in_the_folder_went_through_the_seam(
    traces: dict[tuple[str, str], Trace], layout: str, mode: str
) -> None:
    trace = traces[layout, mode]
    assert [event for event in trace.kernel if event.path] == list(trace.seam)
    assert {"create", "write", "rename", "unlink", "symlink", "mkdir"} <= {
        event.name for event in trace.seam
    }
