"""The sixty bad inputs, as data: what is typed, what lies in the folder, and what the answer must
say. Also read by bench/bad_input.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ecrl_cli.cli.arguments import parse
from ecrl_cli.cli.compose import compose_grid
from ecrl_cli.data.preflight import ARCHIVES
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import write_run_config

BASE = ("global_batch=64", "run_dir=run")


@dataclass(frozen=True)
class Row:
    """`number`: the row of the list. `arguments` after `ecrl train`; `says`: fragments of the one
    line; `setup` fills the working folder.
    """

    number: int
    arguments: tuple[str, ...]
    says: tuple[str, ...]
    setup: Callable[[Path], None] | None = None
    code: int = 2
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.number:02d} {' '.join(self.arguments)[:60]}"


def row(
    number: int,
    typed: str,
    *says: str,
    setup: Callable[[Path], None] | None = None,
    environment: dict[str, str] | None = None,
) -> Row:
    return Row(number, tuple(typed.split()), says, setup, environment=environment or {})


def recorded(folder: Path, schema_version: int | None = None) -> None:
    """A run directory `run` of another start, with the configuration BASE."""
    layout = RunLayout(folder / "run")
    layout.root.mkdir(mode=0o700)
    write_run_config(layout, compose_grid(parse(BASE)).cells[0].config)
    if schema_version is not None:
        layout.config.write_text(
            layout.config.read_text().replace(
                '"schema_version": 1', f'"schema_version": {schema_version}'
            )
        )


def newer(folder: Path) -> None:
    recorded(folder, schema_version=3)


def damaged(folder: Path) -> None:
    recorded(folder)
    config = RunLayout(folder / "run").config
    config.write_bytes(config.read_bytes()[:-40])


def plain_file(folder: Path) -> None:
    (folder / "run").write_text("a file")


def open_to_all(folder: Path) -> None:
    (folder / "run").mkdir()
    (folder / "run").chmod(0o777)


def symlink_loop(folder: Path) -> None:
    (folder / "run").symlink_to("run")


def thesis(folder: Path) -> None:
    (folder / "run").mkdir(mode=0o700)
    (folder / "run" / "thesis.tex").write_text("years of work")


def wrong_sums(folder: Path) -> None:
    archive = ARCHIVES["cifar10"]
    home = folder / "data" / "cifar10" / archive.folder
    home.mkdir(parents=True)
    for name in archive.files:
        (home / name).write_bytes(b"not the official bytes")


def conf(text: bytes, size: int = 0) -> Callable[[Path], None]:
    """A folder `conf` with suite/mine.yaml."""

    def make(folder: Path) -> None:
        file = folder / "conf" / "suite" / "mine.yaml"
        file.parent.mkdir(parents=True)
        file.write_bytes(text)
        if size:
            os.truncate(file, size)

    return make


OWN_SWEEP = b"# @package _global_\nhydra: {sweeper: {params: {seed: '1,2'}}}\nsuite_name: mine\n"
MINE = "--config-dir conf +suite=mine"

ROWS = (
    row(1, "global_batch=0", "global_batch: must be >= 1, got 0"),
    row(2, "global_batch=-8", "global_batch: must be >= 1, got -8"),
    row(
        3,
        "global_batch=33 world_size=2",
        "global_batch: 33 is not divisible by world size 2; use 32 or 34",
    ),
    row(4, "global_batch=12.5", "global_batch: must be an integer, got 12.5"),
    row(5, "global_batch=abc", "global_batch: must be an integer, got 'abc'"),
    row(
        6,
        "global_batch=1000 dataset=fake dataset.size=512",
        "global_batch: 1000 is larger than the dataset (512): an epoch would have 0 steps",
    ),
    row(
        6,
        "global_batch=2000",
        "global_batch: 2000 is larger than the dataset (1797)",
        "use at most",
    ),
    row(
        7,
        "global_batch=32 run_dir=run",
        "run_dir:",
        "global_batch 64 there and 32 here",
        "choose another run_dir",
        setup=recorded,
    ),
    row(8, "target_steps=0", "target_steps: must be >= 1, got 0"),
    row(
        9,
        "global_batch=64 run_dir=run target_steps=100",
        "target_steps 1600 there and 100 here",
        setup=recorded,
    ),
    row(10, "world_size=0", "world_size: must be >= 1, got 0"),
    row(
        12,
        "device=cuda",
        "device: CUDA is not available",
        "set device=cpu",
        environment={"CUDA_VISIBLE_DEVICES": ""},
    ),
    row(13, "device=tpu", "device: must be one of auto, cpu, cuda, got 'tpu'"),
    row(14, "launch.backend=nccl device=cpu", "launch.backend: unknown key"),
    row(
        15,
        "elastic.schedule={100:8} elastic.replicas=4",
        "elastic.schedule: 8 ranks from step 100 on cannot share 4 replicas",
        "use 4",
    ),
    row(
        15,
        "world_size=8 elastic.replicas=4",
        "world_size: 8 ranks cannot share 4 replicas: each needs one",
        "use at most 4",
    ),
    row(
        15,
        "elastic.schedule={100:3}",
        "elastic.schedule: 3 ranks from step 100 on do not divide global_batch",
        "use 2",
    ),
    row(15, "elastic.schedule={100:0}", "elastic.schedule: a world size must be >= 1, got 0"),
    row(
        15,
        "elastic.schedule={1600:1}",
        "elastic.schedule: step 1600 is not below target_steps 1600",
    ),
    row(
        15,
        "elastic.schedule={100:1} checkpoint=none",
        "elastic.schedule: a change of the size",
        "add checkpoint=blocking",
    ),
    row(
        15,
        "elastic.schedule={0:1} world_size=2",
        "world_size: is 2, elastic.schedule begins with 1",
        "leave one of them out",
    ),
    row(
        16,
        "elastic.replicas=6 global_batch=32",
        "elastic.replicas: global_batch 32 is not divisible by 6 replicas",
        "use 4 or 8",
    ),
    row(16, "elastic.replicas=-1", "elastic.replicas: must be >= 0, got -1"),
    row(
        17,
        "write_mode=atomic",
        "write_mode: must be one of",
        "unsafe",
        "atomic_nodirsync",
        "atomic_dirsync",
        "got 'atomic'",
    ),
    row(
        17,
        "write_mode.name=atomic",
        "write_mode.name: must be one of unsafe, atomic_nodirsync, atomic_dirsync, got 'atomic'",
    ),
    row(
        17, "write_mode.atomic=false", "write_mode: the switches contradict the name atomic_dirsync"
    ),
    row(
        18,
        "checkpoint.every=0",
        "checkpoint.every: must be >= 1, got 0",
        "0 would never save: use checkpoint=none",
    ),
    row(
        19,
        "checkpoint.every=500 target_steps=400 checkpoint.final=false",
        "checkpoint.every: no checkpoint would be taken before step 400",
        "lower it",
    ),
    row(20, "checkpoint.keep=0", "checkpoint.keep: must be >= 2, got 0"),
    row(
        21,
        "checkpoint.keep=1",
        "checkpoint.keep: must be >= 2, got 1",
        "a corrupt newest checkpoint leaves nothing",
    ),
    row(
        22,
        "checkpoint=overlapped checkpoint.max_inflight=0",
        "checkpoint.max_inflight: must be >= 1, got 0",
    ),
    row(
        23,
        "checkpoint=overlapped model=resnet18 checkpoint.max_inflight=10000000",
        "checkpoint.max_inflight:",
        "10000000 x 89.6 MB would need",
        "lower it",
    ),
    row(25, "run_dir=run", "run_dir:", "run is a file, need a directory", setup=plain_file),
    row(25, "run_dir=run/below", "run_dir:", "run is a file, need a directory", setup=plain_file),
    row(26, "--config-dir /no/such", "--config-dir: /no/such is not a folder"),
    row(
        29,
        "run_dir=run",
        "run_dir:",
        "mode 0777",
        "lets others plant checkpoints",
        "chmod 700",
        "checkpoint.trust_owner=true",
        setup=open_to_all,
    ),
    row(30, "run_dir=run", "run_dir: too many symbolic links", setup=symlink_loop),
    row(
        31,
        "checkpoint.keep=1000000000000",
        "run_dir: needs about",
        "free space, lower checkpoint.keep",
    ),
    row(
        33,
        "global_batch=64 seed=7 run_dir=run",
        "run_dir:",
        "belongs to run",
        "this configuration is",
        "seed 1337 there and 7 here",
        setup=recorded,
    ),
    row(
        34,
        "run_dir=run",
        "run_dir:",
        "contains files that ECRL did not make (first: 'thesis.tex')",
        "choose an empty directory",
        setup=thesis,
    ),
    row(34, "-m seed=1,2 run_dir=run", "run_dir:", "first: 'thesis.tex'", setup=thesis),
    row(35, "resume=true", "resume: unknown key", "start the same command again"),
    row(37, "resume=step:250", "resume: unknown key", "start the same command again"),
    row(
        38,
        "global_batch=64 model=resnet18 run_dir=run",
        "model.name 'small_cnn' there and 'resnet18' here",
        setup=recorded,
    ),
    row(
        39,
        "global_batch=64 optimizer=adamw run_dir=run",
        "optimizer.name 'sgd' there and 'adamw' here",
        setup=recorded,
    ),
    row(
        40,
        "global_batch=64 dataset=fake run_dir=run",
        "dataset.name 'digits' there and 'fake' here",
        setup=recorded,
    ),
    row(
        41,
        "global_batch=64 run_dir=run",
        "schema version 3, this ECRL reads 1",
        "use the version that wrote it",
        setup=newer,
    ),
    row(
        41,
        "global_batch=64 run_dir=run",
        "config.json: not JSON",
        "restore the file",
        setup=damaged,
    ),
    row(
        42, "model=resnet9000", "model: must be one of", "got 'resnet9000'; did you mean resnet50?"
    ),
    row(
        42,
        "model=gpt",
        "model: must be one of",
        "got 'gpt'; an option of your own is a file model/NAME.yaml",
        "entry point in ecrl.models: see docs/extend.md",
    ),
    row(
        43,
        "dataset=wikitext",
        "dataset: must be one of",
        "a file dataset/NAME.yaml in --config-dir DIR",
        "ecrl.datasets: see docs/extend.md",
    ),
    row(43, "dataset=imagenet", "dataset: must be one of", "imagefolder"),
    row(
        43,
        "dataset=imagefolder",
        "dataset.root: imagefolder is not there: no folder data/imagefolder",
        "one folder of images per class",
    ),
    row(
        44,
        "dataset=cifar10 dataset.download=false",
        "dataset.root: cifar10 is not there: no folder data/cifar10",
    ),
    row(
        44,
        "dataset=cifar10",
        "dataset.checksum:",
        "md5 mismatch",
        "dataset.checksum=none",
        setup=wrong_sums,
    ),
    row(45, "optimizer.lr=-1", "optimizer.lr: must be a finite number > 0, got -1"),
    row(45, "optimizer.lr=nan", "optimizer.lr: must be a finite number > 0, got nan"),
    row(45, "optimizer.lr=inf", "optimizer.lr: must be a finite number > 0, got inf"),
    row(46, "seed=-1", "seed: must be in 0 .. 2^63-1, got -1"),
    row(46, "seed=18446744073709551616", "seed: must be in 0 .. 2^63-1, got 18446744073709551616"),
    row(
        47,
        "failure=kill failure.steps=[50,40]",
        "failure.steps: must be strictly increasing, got [50, 40]",
    ),
    row(
        48,
        "failure=kill failure.steps=[5000] target_steps=400",
        "failure.steps: step 5000 is beyond target_steps 400",
    ),
    row(
        49,
        "failure=kill failure.steps=[5] failure.rank=4 world_size=2",
        "failure.rank: rank 4 does not exist with 2 ranks",
    ),
    row(
        49,
        "failure=exit failure.steps=[5] failure.rank=1",
        "failure.rank: exit is injected into rank 0 only, got 1",
        "failure=kill",
    ),
    row(50, "failure=meteor", "failure: must be one of backward, corrupt, eio, ", "got 'meteor'"),
    row(50, "failure=nan", "failure.kind is nan and no step is planned"),
    row(
        50,
        "failure=listed failure.entries=[kil@40]",
        "failure.entries: 'kil@40': unknown failure 'kil'; did you mean kill?",
    ),
    row(
        50,
        "failure=writer failure.steps=[60] failure.point=after_lunch",
        "failure.point: unknown point 'after_lunch', known: before_stage",
    ),
    row(
        50,
        "failure=nan failure.steps=[60] failure.moment=load",
        "failure.moment: nan cannot be injected at load; it can at: forward",
    ),
    row(
        50,
        "failure=enospc failure.steps=[60] checkpoint=none",
        "failure.kind: is injected into a save, checkpoint=none makes none",
    ),
    row(
        50,
        "failure=corrupt failure.steps=[60]",
        "failure.steps: at step 60 there is no earlier checkpoint",
        "inject at step 100",
    ),
    row(50, "failure.kind=meteor", "failure.kind: must be one of none, exit, kill, "),
    row(
        50,
        "failure.steps=[40]",
        "failure.steps: [40] planned, but failure.kind is none",
        "add failure=kill",
    ),
    row(51, "failure.signal=SIGFOO", "failure.signal: unknown key"),
    row(52, "supervision.max_restarts=-1", "supervision.max_restarts: must be >= 0, got -1"),
    row(
        53,
        "supervision.hang_timeout_s=0.01",
        "supervision.hang_timeout_s: must be a finite number >= 1, got 0.01",
    ),
    row(54, "supervision.grace_s=-1", "supervision.grace_s: must be a finite number >= 0, got -1"),
    row(
        55,
        "supervision.master_port=22",
        "supervision.master_port: port must be 1024-65535 and free, got 22",
    ),
    row(
        55,
        "supervision.master_port=70000",
        "supervision.master_port: port must be 1024-65535 and free, got 70000",
    ),
    row(56, "stor.mode=unsafe", "stor.mode: unknown key 'stor'"),
    row(
        56,
        "checkpoint.evry=5",
        "checkpoint.evry: unknown key 'checkpoint.evry'; did you mean checkpoint.every?",
    ),
    row(56, "+checkpoint.evry=5", "checkpoint.evry: unknown key", "did you mean checkpoint.every?"),
    row(
        56,
        MINE,
        "checkpoint.evry: unknown key",
        "did you mean checkpoint.every?",
        setup=conf(b"# @package _global_\ncheckpoint: {evry: 5}\n"),
    ),
    row(57, "seed=1 seed=2", "seed: given twice"),
    row(58, "checkpoint.every=", "checkpoint.every: has no value"),
    row(58, "checkpoint.every=???", "checkpoint.every: has no value"),
    row(58, "checkpoint.every=null", "checkpoint.every: has no value"),
    row(
        59,
        "model._target_=os.system",
        "model._target_: '_target_' is not accepted",
        "does not instantiate from configuration",
    ),
    row(
        59,
        MINE,
        "model._target_: '_target_' is not accepted",
        setup=conf(b"# @package _global_\nmodel: {_target_: os.system}\n"),
    ),
    row(60, "hydra.run.dir=/etc", "hydra.run.dir: is set by ECRL; use run_dir=DIR"),
    row(
        60,
        "hydra.launcher._target_=os.system",
        "hydra.launcher._target_: '_target_' is not accepted",
    ),
    row(
        60,
        MINE,
        "hydra.callbacks: is set by ECRL",
        setup=conf(b"# @package _global_\nhydra: {callbacks: {x: {y: 1}}}\n"),
    ),
    row(60, "seed=${eval:1}", "seed: resolvers are not accepted, got '${eval:1}'"),
    row(60, "run_dir=${oc.env:HOME}", "run_dir: resolvers are not accepted"),
    row(60, "seed=${target_steps} target_steps=${seed}", "refers to itself through ${...}"),
    row(
        58,
        MINE,
        "conf/suite/mine.yaml:2",
        "has no value (???)",
        setup=conf(b"# @package _global_\nseed: ???\n"),
    ),
    row(
        56,
        MINE,
        "suite: unknown key 'suite'",
        "put `# @package _global_` on the first line",
        setup=conf(b"target_steps: 5\n"),
    ),
    row(
        60, MINE, "conf/suite/mine.yaml:1:13", "is not UTF-8", setup=conf(b"suite_name: \xff\xfe\n")
    ),
    row(
        60,
        MINE,
        "conf/suite/mine.yaml",
        "has 104857600 bytes",
        setup=conf(b"suite_name: x\n", size=100 * 2**20),
    ),
    row(
        60,
        MINE,
        "conf/suite/mine.yaml:2:1",
        "is not YAML",
        "indent with spaces",
        setup=conf(b"model:\n\twidth: 8\n"),
    ),
    row(
        60,
        f"{MINE},digits-cnn -m",
        "suite: carries a sweep of its own (seed)",
        "would be lost",
        setup=conf(OWN_SWEEP),
    ),
    row(60, "verfy", "is neither a verb nor key=value"),
)

# Rows of the list that are not answered in this table, and why.
EXCEPTED = {
    11: "needs a CUDA device: test_more_ranks_than_devices, with the devices given",
    24: (
        "needs a file system that refuses a directory sync:"
        " test_a_file_system_that_cannot_sync_a_directory"
    ),
    27: "needs a user who may not write: test_no_write_permission",
    28: "needs a read-only mount: test_a_read_only_file_system",
    32: "needs a second supervisor (exit 8): test_a_run_directory_that_is_held",
    36: "checkpoints that are all corrupt (exit 4) need a recorded run: tests of recovery",
}


if __name__ == "__main__":
    sys.stdout.write("\n".join(row.name for row in ROWS) + "\n")
