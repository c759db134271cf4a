"""The places of a part's tensors, in either format: the file's own table, checked against the manifest."""

from __future__ import annotations

from ecrl_cli.checkpoint.format.image import TensorPlace
from ecrl_cli.checkpoint.format.manifest import PartEntry
from ecrl_cli.checkpoint.format.safetensors_header import header_length, longest_header, places
from ecrl_cli.checkpoint.format.torch_file import Read, torch_places

TENSOR_FILES = (".safetensors", ".pt")


def tensor_table(read: Read, name: str, entry: PartEntry, train: bytes) -> list[TensorPlace]:
    """The tensors' places in file order. ValueError unless the table of file `name` agrees with the manifest's `entry`. `train`: train.json."""
    if name.endswith(".pt"):
        return torch_places(read, entry, train)
    if entry.bytes < 8:
        raise ValueError(f"{name} is no safetensors file")
    length = header_length(read(0, 8), entry.bytes)
    if length > longest_header(entry):
        raise ValueError(f"{name} has a header of {length} bytes for {len(entry.tensors)} tensors")
    return places(read(8, length), entry)
