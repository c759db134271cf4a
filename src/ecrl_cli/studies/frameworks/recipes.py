"""The jobs that the study `frameworks` audits: those of examples/jobs, as a framework's
documentation has them written, and what it promises of a resume.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from ecrl_cli.linux.prerequisites import lacking

_PACKAGE = Path(__file__).resolve().parents[2]
_CANDIDATES = (_PACKAGE / "examples" / "jobs", _PACKAGE.parents[1] / "examples" / "jobs")


def jobs_dir() -> Path:
    """The folder of the jobs: beside the package in a wheel, at the top of the repository in a
    checkout.
    """
    return next((path for path in _CANDIDATES if (path / "plain.py").is_file()), _CANDIDATES[-1])


@dataclass(frozen=True)
class Recipe:
    """One way to write a job. `variant`: a switch of the script that is on from the start: the
    framework as it comes. `exact`: whether the job has done all that is left to it, so that it must
    be judged valid. `packages`: the distributions it needs; their versions are in the table.
    `modules`: what is imported once for all ranks. `promise`: what `source`, the framework's
    documentation, says of a resume, in our words.
    """

    name: str
    script: str
    packages: tuple[str, ...]
    modules: tuple[str, ...]
    promise: str
    source: str
    processes: tuple[int, ...] = (1,)
    variant: str = ""
    exact: bool = True

    def missing(self) -> str:
        """The first package that is not installed, and how to get it; empty if none."""
        return lacking(*self.packages)

    def versions(self) -> str:
        return ", ".join(f"{name} {version(name)}" for name in self.packages)


_DCP = ("torch.distributed.checkpoint", "torch.distributed.checkpoint.state_dict")
_LIGHTNING = ("lightning.pytorch", "torchdata.stateful_dataloader")
_LIGHTNING_SAYS = (
    "a checkpoint holds everything needed to restore; a resume inside an epoch is warned of unless"
    " the loader has a state"
)

RECIPES: tuple[Recipe, ...] = (
    Recipe(
        "torch.save",
        "plain",
        ("torch",),
        (),
        "nothing: what is saved and restored is the script's business",
        "pytorch.org, serialization",
        (1, 2),
    ),
    Recipe(
        "accumulation and scaler",
        "accumulation",
        ("torch",),
        (),
        "the scaler's state_dict is to be saved and loaded",
        "pytorch.org, amp",
    ),
    Recipe(
        "text, packed",
        "gpt",
        ("torch",),
        (),
        "nothing: the data set's position is the script's business",
        "pytorch.org, data",
    ),
    Recipe(
        "DDP and DCP",
        "dcp",
        ("torch",),
        _DCP,
        "state dicts of model and optimizer come back, on another number of ranks too",
        "pytorch.org, DCP",
        (1, 2),
    ),
    Recipe(
        "FSDP2 and DCP",
        "fsdp",
        ("torch",),
        (*_DCP, "torch.distributed.fsdp"),
        "as DCP, of sharded parameters",
        "pytorch.org, fully_shard",
        (2,),
    ),
    Recipe(
        "StatefulDataLoader",
        "stateful_loader",
        ("torch", "torchdata"),
        ("torchdata.stateful_dataloader",),
        "state_dict and load_state_dict for checkpoints inside an epoch, also with workers",
        "meta-pytorch.org/data, Stateful DataLoader",
    ),
    Recipe(
        "Lightning",
        "lightning_job",
        ("torch", "lightning", "torchdata"),
        _LIGHTNING,
        _LIGHTNING_SAYS,
        "lightning.ai, checkpointing basic",
    ),
    Recipe(
        "Lightning, generators left to it",
        "lightning_job",
        ("torch", "lightning", "torchdata"),
        _LIGHTNING,
        _LIGHTNING_SAYS,
        "lightning.ai, checkpointing basic",
        variant="generators",
        exact=False,
    ),
    Recipe(
        "Lightning, torch's DataLoader",
        "lightning_job",
        ("torch", "lightning", "torchdata"),
        _LIGHTNING,
        _LIGHTNING_SAYS,
        "lightning.ai, checkpointing basic",
        variant="plain loader",
        exact=False,
    ),
    Recipe(
        "Lightning, a sampler that knows its epoch by set_epoch",
        "lightning_job",
        ("torch", "lightning", "torchdata"),
        _LIGHTNING,
        _LIGHTNING_SAYS,
        "lightning.ai, checkpointing basic",
        variant="sampler without state",
        exact=False,
    ),
    Recipe(
        "Lightning, estimated_stepping_batches read",
        "lightning_job",
        ("torch", "lightning", "torchdata"),
        _LIGHTNING,
        _LIGHTNING_SAYS,
        "lightning.ai, checkpointing basic",
        variant="total steps read",
        exact=False,
    ),
    Recipe(
        "HF Trainer",
        "trainer_job",
        ("torch", "transformers", "accelerate"),
        ("transformers.trainer",),
        "model, optimizer, schedule and generators are loaded, the batches that were done are"
        " skipped",
        "huggingface.co/docs/transformers, Trainer",
    ),
    Recipe(
        "Accelerate",
        "accelerate_job",
        ("torch", "accelerate"),
        ("accelerate",),
        "save_state and load_state: model, optimizer, generators, scaler, what is registered;"
        " skip_first_batches for the position",
        "huggingface.co/docs/accelerate, Checkpointing",
        (1, 2),
    ),
    Recipe(
        "Accelerate, the loader's generator left to it",
        "accelerate_job",
        ("torch", "accelerate"),
        ("accelerate",),
        "save_state and load_state: model, optimizer, generators, scaler, what is registered;"
        " skip_first_batches for the position",
        "huggingface.co/docs/accelerate, Checkpointing",
        variant="generators drawn from",
        exact=False,
    ),
    Recipe(
        "Streaming",
        "streaming_job",
        ("torch", "mosaicml-streaming"),
        ("streaming",),
        "resumes inside an epoch, deterministic, from the state of StreamingDataLoader",
        "docs.mosaicml.com, Fast Resumption",
    ),
    Recipe(
        "reinforcement learning",
        "rl",
        ("torch", "numpy"),
        (),
        "nothing: memory, target network and the world's state are the script's business",
        "pytorch.org, serialization",
    ),
)
