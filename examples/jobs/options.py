"""The command line that all jobs of this folder share."""

import argparse
from pathlib import Path


def parse(bugs):
    """(folder, bug) from `--out DIR [--bug NAME]`, the folder made if need be; `--bugs` lists the bugs and ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    parser.add_argument("--bug", default="", choices=["", *bugs])
    parser.add_argument("--bugs", action="store_true")
    options = parser.parse_args()
    if options.bugs or not options.out:
        print("\n".join(f"{name}: {what}" for name, what in bugs.items()))
        raise SystemExit
    Path(options.out).mkdir(parents=True, exist_ok=True)
    return options.out, options.bug
