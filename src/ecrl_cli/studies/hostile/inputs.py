"""Every hostile input by its key; the ones that are special files, files that change while read,
and configurations that would run code.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache, partial

from ecrl_cli.checkpoint.format.names import COMMIT, LEASE, MANIFEST, MODEL
from ecrl_cli.config.keys import sections
from ecrl_cli.studies.hostile import contents, pickles
from ecrl_cli.studies.hostile.contents import TEXTS
from ecrl_cli.studies.hostile.store_fixture import (
    FILE_TYPES,
    RECORDS,
    MaliciousInput,
    RunFixture,
    made_into,
)

RECORD_TYPES = ("a FIFO", "an endless device", "a folder", "a link out", "a sparse terabyte")
RECORD_TEXTS = (
    "a list",
    "null",
    "a million deep",
    "ten megabytes of text",
    "UTF-16",
    "a pickle",
    "a hundred thousand digits",
)
# calls of the integrity check on a group before which the attacker acts
LOOKS_BEFORE = range(2, 34, 3)


def file_inputs() -> list[MaliciousInput]:
    """Special files in the place of parts, leases, locks and records, and files that change while
    they are looked at.
    """
    return [
        *_checkpoint_file_types(),
        *_changes_while_checked(),
        *_run_records(),
        *_sweep_records(),
        *_fired_names(),
        *_locks(),
        *_judged_records(),
    ]


def _checkpoint_file_types() -> Iterator[MaliciousInput]:
    topic = "types of files"
    refusers = ("commit", "manifest", "parts")
    for kind in FILE_TYPES:
        part = made_into(kind, f"checkpoints/step_00000020/{MODEL}")
        yield MaliciousInput(topic, f"a part: {kind}", "guard", ("parts", "schema", "hash"), part)
        for record in (COMMIT, MANIFEST):
            act = made_into(kind, f"checkpoints/step_00000020/{record}")
            yield MaliciousInput(topic, f"{record}: {kind}", "guard", refusers, act)
        if kind not in ("a link in", "a hard link out"):
            lease = made_into(kind, f"checkpoints/{LEASE}")
            yield MaliciousInput(topic, f"lease: {kind}", "newest", ("StorageError",), lease)
    for name, look, folder_refusers, act in _FOLDERS:
        yield MaliciousInput(topic, f"the folder: {name}", look, folder_refusers, act)


def _changes_while_checked() -> Iterator[MaliciousInput]:
    for name, during in _DURING.items():
        for at in LOOKS_BEFORE:
            key = f"{name}, call {at}"
            yield MaliciousInput("while it is looked at", key, "guard", _ANY, during=during, at=at)


def _record_made_into(content: str, record: str) -> Callable[[RunFixture], None]:
    """The act that makes `record` a special file, or a file with the text of that name."""
    if content in FILE_TYPES:
        return made_into(content, record)
    return partial(_as_text, record, TEXTS[content])


def _run_records() -> Iterator[MaliciousInput]:
    for record in RECORDS:
        texts = [text for text in RECORD_TEXTS if (record, text) not in _FAIR]
        for content in (*RECORD_TYPES, *texts):
            act = _record_made_into(content, record)
            yield MaliciousInput(
                "records of a run", f"{record}: {content}", "records", (record,), act
            )


def _sweep_records() -> Iterator[MaliciousInput]:
    for content in (*RECORD_TYPES, "a million deep", "a pickle"):
        act = _record_made_into(content, "manifest.csv")
        key = f"manifest.csv: {content}"
        yield MaliciousInput("records of a sweep", key, "sweep", ("RecordError",), act)


def _fired_names() -> Iterator[MaliciousInput]:
    for name in ("\u00b2", "\u0660\u0660\u0661", "-1"):
        record = f"fired/{name}.json"
        act = partial(_as_text, record, TEXTS["a pickle"])
        yield MaliciousInput("records of a run", record, "records", (record,), act)


def _locks() -> Iterator[MaliciousInput]:
    for kind in ("a link out", "a folder", "a FIFO"):
        yield MaliciousInput("lock", kind, "lock", _SOME, made_into(kind, ".lock"))


def _judged_records() -> Iterator[MaliciousInput]:
    exits = ("exit 2", "exit 3", "exit 1")
    for record, content in (
        ("config.json", "a million deep"),
        ("supervisor.json", "a pickle"),
        ("metrics.json", "UTF-16"),
        ("config.json", "a FIFO"),
    ):
        act = _record_made_into(content, record)
        for verb in ("verify", "report"):
            key = f"{record}: {content}"
            yield MaliciousInput(f"ecrl {verb}", key, "command", exits, act, (verb, "{run}"))


_ANY, _SOME = (
    (
        "commit",
        "manifest",
        "parts",
        "hash",
        "schema",
        "tensors",
        "nothing was wrong yet",
    ),
    ("StorageError", "RunHeld"),
)
# A plan without entries is valid.
_FAIR = {("failures.json", "a list")}


def _as_text(file: str, text: Callable[[], bytes], fixture: RunFixture) -> None:
    path = fixture.root / file
    path.unlink(missing_ok=True)
    path.write_bytes(text() + (b"\n" if file.endswith(".jsonl") else b""))


def _step_links_out(fixture: RunFixture) -> None:
    fixture.group.rename(fixture.outside / "step_00000020")
    fixture.group.symlink_to(fixture.outside / "step_00000020")


def _root_links_out(fixture: RunFixture) -> None:
    root = fixture.group.parent
    root.rename(fixture.outside / "checkpoints")
    root.symlink_to(fixture.outside / "checkpoints")


def _step_is_a_file(fixture: RunFixture) -> None:
    fixture.group.rename(fixture.outside / "gone")
    fixture.group.write_bytes(b"")


_FOLDERS = (
    ("the checkpoint's links out", "guard", ("file",), _step_links_out),
    ("the checkpoint's is a file", "guard", ("file",), _step_is_a_file),
    ("checkpoints/ links out", "newest", ("StorageError",), _root_links_out),
)


def _swap_for_fifo(fixture: RunFixture) -> None:
    os.mkfifo(fixture.group / "other")
    (fixture.group / "other").rename(fixture.group / MODEL)


def _swap_for_link(fixture: RunFixture) -> None:
    (fixture.group / "other").symlink_to(fixture.outside / "secret")
    (fixture.group / "other").rename(fixture.group / MODEL)


def _swap_for_other(fixture: RunFixture) -> None:
    (fixture.group.parent / "step_00000010" / MODEL).rename(fixture.group / MODEL)


def _grow(fixture: RunFixture) -> None:
    os.truncate(fixture.group / MODEL, 2**40)


def _cut(fixture: RunFixture) -> None:
    os.truncate(fixture.group / MODEL, 100)


_DURING = {
    "a part becomes a FIFO": _swap_for_fifo,
    "a part becomes a link out": _swap_for_link,
    "a part becomes another's": _swap_for_other,
    "a part grows to a terabyte": _grow,
    "a part is cut": _cut,
}


CALL = {"_target_": "builtins.open", "_args_": ["x", "w"]}
TREES: dict[str, dict[str, object]] = {
    **{f"_target_ in {section}": {section: {"_target_": "os.system"}} for section in sections()},
    "_target_ at the top": dict(CALL),
    "_target_ in a list": {"failure": {"steps": [CALL]}},
    "_partial_": {"model": {"_partial_": True}},
    "_recursive_": {"model": {"_recursive_": True}},
    "an environment variable": {"suite_name": "${oc.env:HOME}"},
    "an environment variable within": {"suite_name": "a${oc.env:AWS_SECRET_ACCESS_KEY,none}"},
    "a resolver that decodes": {"suite_name": "${oc.decode:'1'}"},
    "a resolver that nobody has": {"suite_name": "${eval:1+1}"},
    "an interpolation of itself": {"suite_name": "${suite_name}"},
    "an interpolation in a circle": {"suite_name": "${run_dir}", "run_dir": "${suite_name}"},
    "an interpolation that grows": {
        "suite_name": "${run_dir}${run_dir}",
        "run_dir": "${suite_name}${suite_name}",
    },
    "an unknown section": {"exploit": {"a": 1}},
    "a control character": {"suite_name": "a\x1b[31m"},
    "a path as a name": {"suite_name": "../../etc"},
    "a module as a model": {"model": {"name": "os.system"}},
}
COMMANDS: dict[str, tuple[str, ...]] = {
    "hydra.run.dir": ("hydra.run.dir=/",),
    "hydra.launcher": ("hydra.launcher._target_=os.system",),
    "hydra/launcher": ("hydra/launcher=submitit",),
    "hydra.job.chdir": ("hydra.job.chdir=true",),
    "hydra.callbacks": ("+hydra.callbacks.x._target_=os.system",),
    "hydra.output_subdir": ("hydra.output_subdir=/tmp",),
    "_target_": ("model._target_=os.system",),
    "+_target_": ("+dataset._target_=os.system",),
    "oc.env": ("suite_name=${oc.env:HOME}",),
    "a package": ("model@_global_=small_cnn",),
}
FILES = {
    "_target_": "# @package _global_\nmodel: {_target_: os.system}\n",
    "hydra.run.dir": "# @package _global_\nhydra: {run: {dir: /tmp/elsewhere}}\n",
    "hydra.callbacks": "# @package _global_\nhydra: {callbacks: {x: {_target_: os.system}}}\n",
    "hydra.job.env_set": "# @package _global_\nhydra: {job: {env_set: {LD_PRELOAD: evil.so}}}\n",
    "oc.env": "# @package _global_\nsuite_name: ${oc.env:HOME}\n",
    "a YAML tag": "# @package _global_\nsuite_name: !!python/object/apply:os.system [touch x]\n",
    "aliases a billion": (
        "a: &a [x,x,x,x,x,x,x,x,x]\n"
        + "".join(
            f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n"
            for a, b in zip("abcdefgh", "bcdefghi", strict=True)
        )
    ),
    "two megabytes": "# @package _global_\nsuite_name: " + "x" * 2_000_000 + "\n",
    "nested deep": "# @package _global_\nsuite_name: " + "[" * 5000 + "]" * 5000 + "\n",
}


def configuration_inputs() -> list[MaliciousInput]:
    found = [
        MaliciousInput("configuration", name, f"build {name}", ("ConfigError",)) for name in TREES
    ]
    for name, words in COMMANDS.items():
        found.append(
            MaliciousInput(
                "command line",
                name,
                "command",
                ("exit 2",),
                words=("train", *words, "run_dir={outside}/new", "--cfg", "job"),
            )
        )
    for name, text in FILES.items():
        words = (
            "train",
            "--config-dir",
            "{run}/conf",
            "+suite=evil",
            "run_dir={outside}/new",
            "--cfg",
            "job",
        )
        found.append(
            MaliciousInput(
                "--config-dir", name, "command", ("exit 2",), partial(_file, text), words
            )
        )
    return found


def _file(text: str, fixture: RunFixture) -> None:
    folder = fixture.root / "conf" / "suite"
    folder.mkdir(parents=True)
    (folder / "evil.yaml").write_text(text, encoding="utf-8")


@cache
def all_inputs() -> dict[str, MaliciousInput]:
    """By key, in a fixed order."""
    made = [
        *pickles.inputs(),
        *contents.json_inputs(),
        *contents.name_inputs(),
        *contents.header_inputs(),
        *file_inputs(),
        *configuration_inputs(),
    ]
    found = {one.key: one for one in made}
    if len(found) != len(made):
        raise ValueError("two hostile inputs have the same name")
    return found
