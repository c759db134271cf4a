"""What a user of ckpt-chaos gives as --result-cmd: prints a digest of the contents of files, since
the bytes of a `torch.save` file differ after a load. FILE:KEY takes one entry of it."""

import hashlib
import sys
from pathlib import Path

import torch


def feed(digest, value):
    if isinstance(value, torch.Tensor):
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            digest.update(str(key).encode())
            feed(digest, value[key])
    elif isinstance(value, (list, tuple)):
        for item in value:
            feed(digest, item)
    else:
        digest.update(repr(value).encode())


whole = hashlib.sha256()
for word in sys.argv[1:]:
    path, _, key = word.partition(":")
    if not Path(path).exists():
        whole.update(b"missing")
    elif path.endswith((".pt", ".ckpt")):
        content = torch.load(path, weights_only=False)
        feed(whole, content[key] if key else content)
    else:
        whole.update(Path(path).read_bytes())
print(whole.hexdigest())
