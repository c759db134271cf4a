"""Answers for keys and options that a user of Hydra types and that ECRL has otherwise: what ECRL
has instead, and where that is documented (docs/hydra.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hydra.core.override_parser.types import Override

from ecrl_cli.config.keys import list_keys
from ecrl_cli.errors import ConfigError, shown

PAGE = "docs/hydra.md"
_JOB = "`--cfg job` shows what is composed"
_SUITE = "a primary configuration of your own is a suite: --config-dir DIR +suite=NAME"
FLAGS = {
    "--info": _JOB,
    "-i": _JOB,
    "--resolve": "`--cfg job` is always resolved",
    "--package": _JOB,
    "-p": _JOB,
    "--config-name": _SUITE,
    "-cn": _SUITE,
    "--config-path": "name the folder with --config-dir DIR",
    "-cp": "name the folder with --config-dir DIR",
    "--hydra-help": "`ecrl train --help`",
    "--run": "without -m a single run is what is started",
    "-r": "without -m a single run is what is started",
    "--shell-completion": "`ecrl completion bash`, zsh or fish",
    "-sc": "`ecrl completion bash`, zsh or fish",
    "--experimental-rerun": "the same command: a stopped run resumes",
}
KEYS = {
    "hydra.run.dir": "use run_dir=DIR",
    "hydra.sweep.dir": "use run_dir=DIR",
    "hydra.sweep.subdir": "runs are named by their content",
    "hydra.launcher": "use supervision.launcher=torchrun or zygote",
    "hydra.mode": "use -m to sweep",
    "hydra.sweeper": "list the values with commas and -m: ecrl -m seed=1,2",
}


def refuse_flags(words: Sequence[str]) -> None:
    """ConfigError for a flag of Hydra's that ECRL does not have."""
    for word, after in zip(words, [*words, ""][1:], strict=True):
        flag, equals, value = word.partition("=")
        if flag in FLAGS:
            raise ConfigError(flag, "is a flag of Hydra that is off", f"{FLAGS[flag]} ({PAGE})")
        if flag in ("--cfg", "-c") and (shown := value if equals else after) in ("hydra", "all"):
            raise ConfigError(
                f"{flag} {shown}",
                "shows Hydra's own settings",
                f"`--cfg job` shows yours; those lie in .hydra of each run ({PAGE})",
            )


def way_out(key: str) -> str:
    """Hint for `key`, which is Hydra's own: what to type instead."""
    dotted = key.replace("/", ".")
    above = [dotted.rsplit(".", cut)[0] for cut in range(dotted.count("."))]
    known = next((KEYS[name] for name in above if name in KEYS), "leave it out")
    return f"{known} ({PAGE})"


def refuse_commas(overrides: Iterable[Override], program: str, multirun: bool) -> None:
    """ConfigError for commas that mean one list, and, without `multirun`, for commas that mean a
    sweep.
    """
    for override in overrides:
        if not override.is_sweep_override():
            continue
        key, text = override.key_or_group, override.input_line or override.key_or_group
        value = text.partition("=")[2]
        if key in list_keys() and not set(value) & set("[({"):
            raise ConfigError(
                key,
                "takes one list",
                f"write '{key}=[{value}]'; to sweep over lists: {program} -m '{key}=[A],[B]'",
            )
        if not multirun:
            raise ConfigError(
                key,
                "has several values without -m",
                f"to sweep over them: {program} -m {shown(text)[1:-1]}",
            )
