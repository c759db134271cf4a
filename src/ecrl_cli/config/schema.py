"""The configuration of a run: one frozen dataclass per conf/ group, one field per key that a user
types.

`config.build` makes these from what Hydra composed and checks every field and combination; from
then on a run's config.json is authoritative and nothing is composed again. Ranges and choices are
in the fields' metadata, so that the check, the message and the help come from one place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ecrl_cli.config.failure_kinds import FAILURE_KINDS
from ecrl_cli.config.registry import VariantRegistry
from ecrl_cli.config.tasks import TASKS
from ecrl_cli.config.trackers import TRACKERS

# The names of the built-in ones; each is an object in config/strategies.py, recoveries.py or
# launchers.py, which ask this module what a configuration is.
STRATEGY_NAMES = (
    "none",
    "blocking",
    "overlapped",
    "in_memory",
    "torch_save",
    "torch_save_durable",
    "dcp",
    "dcp_async",
    "torch_checkpointing",
    "torchsnapshot",
)
RECOVERY_NAMES = (
    "checkpoint_restart",
    "immediate_rollback",
    "lossy_forward",
    "redistribute",
    "skip",
)
LAUNCHER_NAMES = ("torchrun", "zygote")
WRITE_MODES = ("unsafe", "atomic_nodirsync", "atomic_dirsync")
LAYOUTS = ("group", "single")
FORMATS = ("safetensors", "torch")
DIGESTS = ("blake3", "sha256")
CAPTURES = ("copy", "deferred")
DATASETS = ("digits", "cifar10", "cifar100", "imagefolder", "tinyimagenet", "nt3", "fake")
MODELS = ("small_cnn", "resnet18", "resnet50", "resnet152", "vit", "nt3")
OPTIMIZERS = ("sgd", "adamw")
PRECISIONS = ("fp32", "bf16", "fp16")
BACKENDS = ("auto", "nccl", "gloo")
DEVICES = ("auto", "cpu", "cuda")
STORAGES = ("disk", "tmpfs", "throttled")
VICTIMS = ("rank", "all", "node")
INDIVISIBLE = ("refuse", "lower")
NODE_LOSSES = ("requeue", "shrink")
SWITCHES = ("auto", "true", "false")
REFERENCES = ("auto", "none", "always")
SCALES = ("paper", "gpu", "cpu", "smoke")


def at_least(default: Any, minimum: float) -> Any:
    """A field whose value must be >= `minimum`."""
    return field(default=default, metadata={"minimum": minimum})


def positive(default: float) -> Any:
    """A field that must be finite and > 0."""
    return field(default=default, metadata={"positive": True})


def one_of(default: str, choices: tuple[str, ...], group: str = "") -> Any:
    """A field that must be one of `choices`, or a name that an installed package adds in the
    entry-point group `group`.
    """
    return field(default=default, metadata={"choices": choices, "group": group})


def variant(default: str, registry: VariantRegistry[Any]) -> Any:
    """A field that must name one of the variants in `registry`."""
    return one_of(default, registry.builtin, registry.group)


@dataclass(frozen=True)
class DatasetConfig:
    """`root`: a folder with one subfolder per data set. `checksum`: official MD5 sums, or none.
    `augment`: crop and flip.

    `size`, `classes`, `image_size`, `channels` describe `fake` (and `image_size` what `imagefolder`
    resizes to).

    `held_out`: so many samples, drawn by the size alone (the same for every seed), are not trained
    on: they take the place of the data set's own held-out samples, or make some where it has none.
    0: all of the training set is trained on.
    """

    name: str = one_of("digits", DATASETS, "ecrl.datasets")
    root: str = "data"
    checksum: str = one_of("official", ("official", "none"))
    augment: bool = True
    download: bool = True
    size: int = at_least(2048, 1)
    classes: int = at_least(10, 2)
    image_size: int = at_least(32, 8)
    channels: int = at_least(3, 1)
    held_out: int = at_least(0, 0)


@dataclass(frozen=True)
class ModelConfig:
    """`stem`: imagenet (7x7, stride 2, pooling) or cifar (3x3, stride 1). `width`: channels of the
    first layer, or vit's embedding.
    """

    name: str = one_of("small_cnn", MODELS, "ecrl.models")
    stem: str = one_of("cifar", ("cifar", "imagenet"))
    width: int = at_least(32, 4)
    depth: int = at_least(4, 1)
    dropout: float = field(default=0.0, metadata={"minimum": 0.0, "below": 1.0})


@dataclass(frozen=True)
class TaskConfig:
    """The learning task: the loss of a batch, and the form of a sample (config/tasks.py)."""

    name: str = variant("classification", TASKS)


@dataclass(frozen=True)
class EvaluateConfig:
    """Quality on held-out data, by the measures of the task. `every`: after each so many steps, and
    at the target; 0: never, so that no run pays for what it did not ask for. `batch`: samples of
    one forward pass, whatever the number of ranks.
    """

    every: int = at_least(0, 0)
    batch: int = at_least(256, 1)


@dataclass(frozen=True)
class OptimizerConfig:
    """Learning rate on a cosine from `lr` to `min_lr` over the target steps."""

    name: str = one_of("sgd", OPTIMIZERS)
    lr: float = positive(0.1)
    momentum: float = field(default=0.9, metadata={"minimum": 0.0, "below": 1.0})
    weight_decay: float = at_least(5e-4, 0.0)
    min_lr: float = at_least(1e-6, 0.0)


@dataclass(frozen=True)
class DdpConfig:
    """`find_unused_parameters`: DDP's own switch, for models whose steps may not use all
    parameters; each step then traverses the graph once more.
    """

    find_unused_parameters: bool = False


@dataclass(frozen=True)
class CheckpointConfig:
    """`every`: steps between checkpoints. `keep`: how many valid ones retention leaves (>= 2).
    `final`: also one at the target.

    `memory_every`: with in_memory, steps between the snapshots in memory, from which the next
    attempt resumes.
    `capture`: copy (training waits for the copy of its state), or deferred (the background writer,
    or the GPU, copies it while training goes on, which waits only where the optimizer would change
    it; what cannot be deferred is copied, on record).
    `on_error`: after a failed save training continues, or stops with exit code 5, to be resumed
    once the cause is removed.
    `digest`: the hash of tensors and files in checkpoints and of the states that ranks log; sha256
    is slower, and approved where FIPS 140 rules.
    `finite`: which tensors of a checkpoint must be finite, or it is rejected: all (parameters,
    buffers, optimizer state), model (parameters and buffers), parameters, or off (for example for a
    model with infinities in its buffers).
    `hmac_key_file`: a key of 32 bytes or more with which each COMMIT gets a MAC; checkpoints
    without one are then rejected.
    """

    strategy: str = one_of("blocking", STRATEGY_NAMES, "ecrl.strategies")
    every: int = at_least(50, 1)
    memory_every: int = at_least(1, 1)
    max_inflight: int = at_least(4, 1)
    capture: str = one_of("copy", CAPTURES)
    layout: str = one_of("group", LAYOUTS)
    format: str = one_of("safetensors", FORMATS)
    digest: str = one_of("blake3", DIGESTS)
    keep: int = at_least(3, 2)
    final: bool = True
    max_bytes: int = at_least(64 * 2**30, 1)
    trust_owner: bool = False
    finite: str = one_of("all", ("all", "model", "parameters", "off"))
    hmac_key_file: str = ""
    on_error: str = one_of("continue", ("continue", "stop"))


@dataclass(frozen=True)
class WriteModeConfig:
    """A write mode is three booleans: sync the files, install by rename, sync the directories."""

    name: str = one_of("atomic_dirsync", WRITE_MODES)
    sync_files: bool = True
    atomic: bool = True
    sync_directories: bool = True


@dataclass(frozen=True)
class StorageConfig:
    """Where the run directory is and how fast checkpoints are written. `folder`: the run directory
    is created in it and linked to, for example in memory; empty: it is created where `run_dir`
    says. `bytes_per_s`: write bandwidth limit for checkpoints; 0: none.
    """

    name: str = one_of("disk", STORAGES)
    folder: str = ""
    bytes_per_s: float = at_least(0.0, 0.0)


@dataclass(frozen=True)
class FailureConfig:
    """`steps`: strictly increasing global steps; `rank`: the rank that is hit (exit: always rank
    0), `who`: it alone, all ranks, or its node.

    `moment`: when in the step, `share`: how far into it (of the gradients, modules or parameters),
    `point`: where in the store's protocol,
    `seconds`: the delay of a slowdown; empty or 0: the kind's default. `mtbf_steps`, `mtbf_s`: for
    mtbf, which draws: the mean number of steps, or of seconds of supervised time, between two
    failures; 0: not drawn. `entries`: for listed, each in the syntax of config/fault_spec.py.
    """

    kind: str = one_of("none", FAILURE_KINDS, "ecrl.failures")
    steps: tuple[int, ...] = ()
    rank: int = at_least(0, 0)
    who: str = one_of("rank", VICTIMS)
    moment: str = ""
    share: float = field(default=0.5, metadata={"minimum": 0.0, "maximum": 1.0})
    point: str = ""
    seconds: float = at_least(0.0, 0.0)
    mtbf_steps: float = at_least(0.0, 0.0)
    mtbf_s: float = at_least(0.0, 0.0)
    entries: tuple[str, ...] = ()


@dataclass(frozen=True)
class ScheduleConfig:
    """When failures happen, as shares of `target_steps`, so that one schedule fits runs of any
    length.

    `at`: increasing shares, each above 0 and below 1. Each is moved to the nearest checkpoint
    boundary, and from there by `offset` of a checkpoint interval: 0 is right after a checkpoint
    (nothing is lost), 0.5 half-way to the next. Empty: `failure.steps` applies, if given.
    """

    name: str = "none"
    at: tuple[float, ...] = field(default=(), metadata={"positive": True, "below": 1.0})
    offset: float = field(default=0.0, metadata={"minimum": 0.0, "below": 1.0})


@dataclass(frozen=True)
class RecoveryConfig:
    name: str = one_of("checkpoint_restart", RECOVERY_NAMES, "ecrl.recoveries")


@dataclass(frozen=True)
class ElasticConfig:
    """`replicas`: 0 is plain DDP, else the number of fixed micro-shards of the global batch.
    `schedule`: {step: world size}, from that step on.
    `on_indivisible`: a world size that does not divide the batch is refused, or replaced by the
    next lower one that does.
    """

    replicas: int = at_least(0, 0)
    schedule: dict[int, int] = field(default_factory=dict)
    on_indivisible: str = one_of("refuse", INDIVISIBLE)


@dataclass(frozen=True)
class SupervisionConfig:
    """`writer_grace_s`: how long a writer may finish its queue after its rank has died.
    `collective_timeout_s`: of gloo and NCCL.

    `disk_interval_s`: interval of the disk samples in disk.jsonl; 0: none. `scrub_every_s`: the
    seconds between two scrubs of all checkpoints while the run goes on, in scrub.jsonl; 0: none.
    `nodes`: how many nodes of a Slurm allocation share the ranks equally. `on_node_loss`: if too
    few respond, Slurm is asked to requeue the job, or fewer ranks continue. `hang_timeout_s`,
    `hang_factor`: a rank hangs if it makes no progress for `hang_factor` times the longest step
    seen, at least `hang_timeout_s`; before its first step, and while a state is saved,
    `start_timeout_s` applies. `grace_s`: how long a last checkpoint may take when the run is to
    stop; 0: none is taken.
    """

    launcher: str = one_of("torchrun", LAUNCHER_NAMES, "ecrl.launchers")
    max_restarts: int = at_least(20, 0)
    spares: int = at_least(0, 0)
    writer_grace_s: float = positive(30.0)
    collective_timeout_s: float = field(default=300.0, metadata={"minimum": 1.0})
    master_port: int = at_least(0, 0)
    disk_interval_s: float = at_least(0.0, 0.0)
    scrub_every_s: float = at_least(0.0, 0.0)
    nodes: int = at_least(1, 1)
    on_node_loss: str = one_of("requeue", NODE_LOSSES)
    hang_timeout_s: float = field(default=30.0, metadata={"minimum": 1.0})
    hang_factor: float = at_least(10.0, 1.0)
    start_timeout_s: float = field(default=300.0, metadata={"minimum": 1.0})
    grace_s: float = at_least(20.0, 0.0)


@dataclass(frozen=True)
class TrackerConfig:
    """Where the figures of the run are also shown. `place`: folder, address or file; empty: in the
    run directory, under tracker/.
    """

    name: str = variant("none", TRACKERS)
    place: str = ""


@dataclass(frozen=True)
class SealConfig:
    """seal.json, written when a run ends. `key_file`: a key of 32 bytes or more that signs it;
    empty: it is not signed.
    """

    key_file: str = ""


@dataclass(frozen=True)
class VariantConfig:
    """One arm of a comparison. `failures`: whether the suite's failure plan applies to it;
    `resizes`: whether its world-size changes do.
    """

    name: str = "custom"
    failures: bool = True
    resizes: bool = True


@dataclass(frozen=True)
class ScaleConfig:
    """Factors that `config.build` applies to keys the user did not type: fewer steps, a smaller
    batch or width. `world_size`, `launcher`: override the run's, where not 0 or empty (smoke uses
    zygote, because importing torch for each attempt would take most of its time).
    """

    name: str = one_of("paper", SCALES)
    steps: float = positive(1.0)
    batch: float = positive(1.0)
    width: float = positive(1.0)
    min_every: int = at_least(1, 1)
    world_size: int = at_least(0, 0)
    launcher: str = ""


@dataclass(frozen=True)
class RunConfig:
    """One run, resolved. `threads`: per rank (the number of threads changes the bits). `backend`:
    auto is NCCL for CUDA and gloo for the CPU; gloo, if named, lets ranks share a GPU, which NCCL
    refuses. `run_dir` empty: named by content under outputs/.

    `private`: nobody but the owner may read what the run writes (0700); else whom the umask lets
    may. Nobody else ever writes there.

    `reference`: whether a reference run without failures is trained for comparison, if there is
    none: auto (if a failure is planned), none or always.

    `state_digests`: each rank logs digests of its state after every step (true), never (false), or
    as often as costs at most 1% of a step (auto, measured). A bool in configurations recorded by
    earlier versions.

    `continued_at`: the targets that the run had reached before it was given a higher one,
    ascending; ECRL sets it (`config.legs`).

    `begins_from`: the checkpoint of another run whose state this one begins with instead of the
    initial one: its path in this run's directory, the SHA-256 of its commit, and the run id of the
    other run; empty for any other run. ECRL sets it for the reference of the rest of a run.
    """

    seed: int = field(default=1337, metadata={"minimum": 0, "maximum": 2**63 - 1})
    target_steps: int = at_least(1600, 1)
    continued_at: tuple[int, ...] = field(default=(), metadata={"minimum": 1})
    begins_from: tuple[str, ...] = ()
    global_batch: int = at_least(256, 1)
    world_size: int = at_least(2, 1)
    threads: int = at_least(1, 1)
    device: str = one_of("auto", DEVICES)
    backend: str = one_of("auto", BACKENDS)
    precision: str = one_of("fp32", PRECISIONS)
    state_digests: bool | str = one_of("auto", SWITCHES)
    suite_name: str = ""
    run_dir: str = ""
    private: bool = False
    reference: str = one_of("auto", REFERENCES)
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    ddp: DdpConfig = field(default_factory=DdpConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    write_mode: WriteModeConfig = field(default_factory=WriteModeConfig)
    storage: StorageConfig = field(default_factory=StorageConfig)
    failure: FailureConfig = field(default_factory=FailureConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    recovery: RecoveryConfig = field(default_factory=RecoveryConfig)
    elastic: ElasticConfig = field(default_factory=ElasticConfig)
    supervision: SupervisionConfig = field(default_factory=SupervisionConfig)
    tracker: TrackerConfig = field(default_factory=TrackerConfig)
    seal: SealConfig = field(default_factory=SealConfig)
    variant: VariantConfig = field(default_factory=VariantConfig)
    scale: ScaleConfig = field(default_factory=ScaleConfig)
