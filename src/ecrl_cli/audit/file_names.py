"""Names of files, and of values in them, that belong to an attempt or a machine and not to the
training.
"""

from __future__ import annotations

import re

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# A value under such a word is of this attempt, this process or this machine.
_RESTARTS = frozenset(
    "attempt attempts restart restarts restarted resume resumed resumes resuming retries launch"
    " launches resumption".split()
)
_OF_ATTEMPT = _RESTARTS | frozenset(
    "time times timestamp timestamps datetime date elapsed duration second seconds sec secs ms"
    " runtime walltime wall clock eta speed throughput fps created modified started finished"
    " host hostname pid ppid uuid guid port user cwd argv command cmdline".split()
)
# What "mem" means beside one of these; alone it may be a replay memory.
_BYTES = frozenset("gpu cuda cpu peak max used allocated bytes mb gb mib gib".split())
_RUN_ID = re.compile(
    r"(?:^|[^a-z])(?:run|job|session|experiment|exp|trial|wandb|save|process|attempt)_?(?:id|name)s?$"
)
# How a job was started the second time, and what schedulers count for a warning only.
_HOW_STARTED = re.compile(
    r"^_?(?:(?:start|initial|first|begin)_(?:epoch|step|iter|iteration|batch|global_step)|init_from|load_from|load|load_checkpoint|pretrained"
    r"|ckpt|ckpt_path|checkpoint|checkpoint_path|from_checkpoint|step_count)$"
)
# HF Trainer's mean loss over the steps of this process.
_THIS_PROCESS = {"train_loss"}
_STEPS = frozenset(
    "step global_step steps iteration iter iter_num epoch it n_iter num_steps current_step"
    " current_epoch global_steps".split()
)
_SERIES = re.compile(
    r"hist|log|loss|metric|curve|record|trace|result|stats|train|acc", re.IGNORECASE
)
_EVALUATED = re.compile(r"val|test|best|score", re.IGNORECASE)
_ASIDE = (
    (re.compile(r"(?:^|/)events\.out\.tfevents\."), "TensorBoard's events hold times"),
    (re.compile(r"\.lock$"), "a lock"),
    (re.compile(r"(?:^|/)__pycache__/|\.pyc$"), "compiled code"),
    (re.compile(r"(?:^|/)core(?:\.\d+)?$"), "a core dump"),
    (
        re.compile(r"\.te?mp(?:$|[.-])|\.part(?:ial)?$|(?:^|/)\.nfs|\.sw[op]$|~$|\.pid$"),
        "a temporary file",
    ),
    (re.compile(r"(?:^|/)(?:wandb|mlruns|\.git|\.aim|\.cache)/"), "a tracker's own record"),
    (re.compile(r"\.md$|\.html?$"), "text for people"),
)
_VERSION = re.compile(r"-v\d+(?=\.|$)")


def not_judged(path: str) -> str:
    """Why the file is not judged whatever it holds; else empty."""
    return next((reason for pattern, reason in _ASIDE if pattern.search(path)), "")


def is_of_attempt(key: str) -> bool:
    """Whether a plain value under the path `key` belongs to an attempt, a process or a machine by
    its name. A list of lists under such a name is data.
    """
    parts = [re.sub(r"\[\d+\]|#\d+$", "", part) for part in key.split(".")]
    words = [{word.lower() for word in _WORDS.findall(part)} for part in parts]
    last, place = parts[-1], next(filter(lambda at: _tells(words[at]), range(len(parts))), None)
    if place is not None and not {"step", "steps"} & set().union(*words):
        return ".".join(key.split(".")[place:]).count("[") < 2
    return last in _THIS_PROCESS or bool(
        _HOW_STARTED.search(last.lower()) or _RUN_ID.search(last.lower())
    )


def counts_restarts(key: str) -> bool:
    """Whether a number under `key` may count the attempts of a job by its name."""
    return bool(_RESTARTS & {word.lower() for word in _WORDS.findall(key)})


def _tells(words: set[str]) -> bool:
    return bool(words & _OF_ATTEMPT or ("mem" in words and words & _BYTES))


def is_step(key: str) -> bool:
    """Whether the value under `key` counts the steps or epochs that the job has done."""
    return key.rpartition(".")[2] in _STEPS


def is_series(key: str) -> bool:
    """Whether a list at the path `key` records the training as it went, and is no evaluation."""
    return bool(_SERIES.search(key)) and not _EVALUATED.search(key)


def blanked(path: str) -> str:
    """`path` without the numbers that loggers and checkpoint callbacks add where a file is there
    already: version_1/, -v1.
    """
    folders, slash, name = path.rpartition("/")
    return re.sub(r"\d+", "0", folders) + slash + _VERSION.sub("", name)
