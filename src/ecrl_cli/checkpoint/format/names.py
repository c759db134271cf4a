"""The names of the checkpoint protocol: files, parts, layers of the integrity check, and the points
at which a writer may be killed.
"""

from __future__ import annotations

import re

from ecrl_cli.config.schema import DIGESTS, CheckpointConfig

FORMAT_VERSION = 2
READABLE = (1, 2)
TRAIN_VERSION = 1  # of train.json

DIGEST = DIGESTS[0]  # of those that checkpoint.digest may be

MANIFEST, COMMIT, TRAIN = "MANIFEST.json", "COMMIT.json", "train.json"
STEP_METADATA = "ecrl.json"  # beside the files of another checkpointer
LATEST, LATEST_OK = "latest.json", "latest_ok"
LEASE = ".attempt"
STAGE_PREFIX, TRASH_PREFIX, REJECTED_PREFIX = ".stage_", ".trash_", ".rejected_"

MODEL, OPTIMIZER, RNG = "model.safetensors", "optimizer.safetensors", "rng.safetensors"

# The first word of a tensor's name is its component: parameters.conv1.weight,
# optimizer.conv1.weight.momentum_buffer, rng.rank0.torch.
COMPONENTS = ("parameters", "buffers", "optimizer", "rng")
PART_OF = {"parameters": MODEL, "buffers": MODEL, "optimizer": OPTIMIZER, "rng": RNG}

# checkpoint.finite: the components that may hold neither NaN nor infinity in a checkpoint to be
# loaded.
FINITE = {
    "all": ("parameters", "buffers", "optimizer"),
    "model": ("parameters", "buffers"),
    "parameters": ("parameters",),
    "off": (),
}

STEP_NAME = re.compile(r"^step_([0-9]{8})(\.safetensors|\.pt)?\Z")
PART_NAME = re.compile(r"^[a-z0-9][a-z0-9_.-]{0,63}$")

CHUNK = 64 * 1024  # bytes per CRC in the manifest


def must_be_finite(tensor: str, setting: str) -> bool:
    """Whether `checkpoint.finite=setting` forbids NaN and infinity in the tensor `tensor`."""
    return tensor.partition(".")[0] in FINITE[setting]


def suffix_of(checkpoint: CheckpointConfig) -> str:
    """Suffix of a single-file checkpoint; empty for a group. format=torch always writes a single
    file.
    """
    if checkpoint.format == "torch":
        return ".pt"
    return ".safetensors" if checkpoint.layout == "single" else ""


def step_name(step: int) -> str:
    return f"step_{step:08d}"


# The layers of the integrity check, in order: a rejection names one of them.
LAYERS = ("file", "commit", "manifest", "parts", "hash", "schema", "tensors", "finite")

# Where the injector and the crash-point study may kill the writer; {part} runs over the parts. A
# single-file checkpoint has one sidecar for manifest and commit: it has no points of the manifest,
# but between_renames.
CRASH_POINTS = tuple(
    (
        "before_stage half_part:{part} after_part:{part} before_manifest half_manifest"
        " before_commit half_commit after_commit before_stage_sync before_rename between_renames"
        " after_rename after_root_sync before_pointer before_pointer_rename between_pointers"
        " before_link_rename before_pointer_sync after_pointer before_trash half_trash after_trash"
    ).split()
)
