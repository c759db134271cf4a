"""The command line that all jobs of this folder share."""

import argparse


def parse(bugs):
    """(folder, bug) from `--out DIR [--bug NAME]`; `--bugs` lists the bugs and ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    parser.add_argument("--bug", default="", choices=["", *bugs])
    parser.add_argument("--bugs", action="store_true")
    options = parser.parse_args()
    if options.bugs or not options.out:
        print("\n".join(f"{name}: {what}" for name, what in bugs.items()))
        raise SystemExit
    return options.out, options.bug
