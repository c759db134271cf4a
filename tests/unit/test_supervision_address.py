"""Where the ranks meet is reachable from this machine only."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, psutil
from ecrl_cli.supervision.launch.zygote_main import start_store
_, port = start_store()
hosts = psutil.Process().children()
connections = [c for host in hosts for c in host.net_connections("inet")]
print([(c.laddr.ip, c.laddr.port == port) for c in connections if c.status == "LISTEN"])
for host in hosts:
    host.kill()
    host.wait()
"""


def test_the_zygotes_store_listens_on_the_loopback_only() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=True
    )
    assert ended.stdout.strip() == "[('127.0.0.1', True)]"
