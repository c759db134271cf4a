"""A background writer that only answers: `python -m tests.contract.standin_writer RUN_DIR
LISTENING_FD`. A file `hang` in RUN_DIR makes it silent.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path


def main(root: Path, listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        asked = connection.recv(4096)
        (root / "asked").write_bytes(asked)
        if (root / "hang").exists():
            connection.recv(1)  # until the other end gives up
        connection.sendall(b'{"kind":"drained"}\n')
        connection.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])))
