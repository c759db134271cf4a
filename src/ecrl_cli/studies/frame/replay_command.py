"""The command that reruns one trial."""

from __future__ import annotations

from ecrl_cli.config.codec import encode
from ecrl_cli.config.study import StudyConfig


def command(config: StudyConfig, key: str) -> str:
    """The command line that reruns the trial `key` of this study."""
    defaults = encode(type(config.study)())
    keys = {name: value for name, value in encode(config.study).items() if value != defaults[name]}
    words = [f"study.{name}={_value(value)}" for name, value in keys.items()]
    return " ".join(["ecrl study", f"study={config.name}", f"seed={config.seed}", *words, f"'trial={key}'"])


def _value(value: object) -> str:
    return f"'[{','.join(map(str, value))}]'" if isinstance(value, list) else str(value).lower() if isinstance(value, bool) else str(value)
