"""Where the tensors of a part lie, whatever its format: the file's own table, held against the manifest."""

from __future__ import annotations

from ecrl_cli.checkpoint.format.image import TensorPlace
from ecrl_cli.checkpoint.format.manifest import PartEntry
from ecrl_cli.checkpoint.format.safetensors_header import header_length, longest_header, places
from ecrl_cli.checkpoint.format.torch_file import Read, torch_places

TENSOR_FILES = (".safetensors", ".pt")


def tensor_table(read: Read, name: str, entry: PartEntry, train: bytes) -> list[TensorPlace]:
    """In file order. ValueError where the table of file `name` does not agree with the manifest's `entry`. `train`: the text of train.json."""
    if name.endswith(".pt"):
        return torch_places(read, entry, train)
    if entry.bytes < 8:
        raise ValueError(f"{name} is no safetensors file")
    length = header_length(read(0, 8), entry.bytes)
    if length > longest_header(entry):
        raise ValueError(f"{name} has a header of {length} bytes for {len(entry.tensors)} tensors")
    return places(read(8, length), entry)
