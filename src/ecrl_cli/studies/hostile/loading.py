"""Loads a checkpoint as a rank does, in its own process, and prints the reason of a rejection. A program; the only file here that imports torch."""

from __future__ import annotations

import sys
from pathlib import Path

from ecrl_cli.checkpoint.capture.loading import load_checkpoint
from ecrl_cli.errors import EcrlError


def main(path: str) -> int:
    try:
        load_checkpoint(Path(path))
    except EcrlError as error:
        sys.stderr.write(f"{type(error).__name__}: {error.line()}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
