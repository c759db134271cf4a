"""The entry point `ecrl`: dispatches to a verb. Errors are one line on standard error; exit codes
are shared by all verbs.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TextIO

from ecrl_cli import __version__
from ecrl_cli.cli.console import say
from ecrl_cli.cli.help_text import COMPLETION, HELP, VERBS
from ecrl_cli.config.registry import did_you_mean
from ecrl_cli.errors import DEFECT, STOPPED, ConfigError, EcrlError, StorageError, first_line, shown

_HELP_FLAGS = ("-h", "--help")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit code: DEFECT, with the traceback on standard error, for
    an exception that is none of ECRL's errors.

    Characters that standard output or standard error cannot encode are written as escapes from here
    on.
    """
    _open_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    cut = words.index("--") if "--" in words else len(words)
    debug = "--debug" in words[:cut]
    words = [word for word in words[:cut] if word != "--debug"] + words[cut:]
    try:
        code = _dispatch_with_plugins(words, debug)
        # a full disk or a closed pipe shows here at the latest: as the interpreter ends nobody
        # could answer it any more
        sys.stdout.flush()
        return code
    except EcrlError as error:
        return _refuse(error, debug)
    except OSError as error:
        return _refuse(StorageError.of("ecrl", error.filename, error), debug)
    except KeyboardInterrupt:
        _tell("ecrl: stopped by SIGINT")
        return STOPPED[0]
    except Exception as error:
        _tell("".join(traceback.format_exception(error)).rstrip())
        _tell(
            f"ecrl: error: E-internal {first_line(error)}; a defect in ECRL and no verdict: please"
            " report it with the lines above"
        )
        return DEFECT
    finally:
        for stream in (sys.stdout, sys.stderr):
            _drop_unwritable(stream)


def _open_streams() -> None:
    """Standard output and standard error that any text can be written to; to nowhere if they were
    closed before the start.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - for as long as the process lives
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _drop_unwritable(stream: TextIO) -> None:
    """Drops what `stream` still holds and cannot write: the interpreter would try again as it ends,
    complain, and end with 120.
    """
    try:
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _tell(text: str) -> None:
    """On standard error, if that takes anything: the exit code says it in any case."""
    with suppress(OSError):
        say(text)


def _refuse(error: EcrlError, debug: bool) -> int:
    if debug:
        _tell("".join(traceback.format_exception(error)).rstrip())
    _tell(f"ecrl: error: {error.line()}")
    if sys.stderr.isatty():  # for people; what reads the one line elsewhere gets that line alone
        _tell(f"  ecrl --explain E-{error.code} says more")
    return error.exit_code


def _explain(codes: list[str]) -> int:
    from ecrl_cli.cli.explain import explain

    if len(codes) != 1:
        raise ConfigError(
            "--explain", "takes the code of one error", "write `ecrl --explain E-config`"
        )
    sys.stdout.write(explain(codes[0]))
    return 0


def _dispatch_with_plugins(words: list[str], debug: bool) -> int:
    cut = words.index("--") if "--" in words else len(words)
    if not any(word.partition("=")[0] == "--plugin" for word in words[:cut]):
        return _dispatch(words, debug)
    from ecrl_cli.cli.plugin_files import plugged, take_flags

    own, files = take_flags(words[:cut])
    if any(word.startswith("hydra/launcher=") for word in own):
        raise ConfigError(
            "--plugin",
            "does not reach the jobs that a launcher submits",
            "install it as a package (docs/extend.md)",
        )
    with plugged(files):
        return _dispatch(own + words[cut:], debug)


def _dispatch(words: list[str], debug: bool) -> int:
    if not words or words[0] in _HELP_FLAGS:
        sys.stdout.write(HELP["ecrl"])
        return 0
    if words[0] == "--version":
        sys.stdout.write(f"ecrl {__version__}\n")
        return 0
    if words[0].partition("=")[0] == "--explain":
        return _explain([*words[0].split("=", 1)[1:], *words[1:]])
    verb, rest = (words[0], words[1:]) if words[0] in VERBS else ("train", words)
    if words[0] not in VERBS and words[0].isidentifier():
        raise ConfigError(
            shown(words[0]),
            "is neither a verb nor key=value",
            did_you_mean(words[0], VERBS) or f"verbs: {', '.join(VERBS)}",
        )
    # what follows `--` is another command's
    own = rest[: rest.index("--")] if "--" in rest else rest
    if any(word in _HELP_FLAGS for word in own):
        sys.stdout.write(
            {"train": _train_help, "study": _study_help}.get(verb, lambda: HELP[verb])()
        )
        return 0
    return _run(verb, rest, debug)


def _train_help() -> str:
    from ecrl_cli.config.conf_paths import conf_dir, groups, installed_dirs, summary

    folders = [conf_dir(), *installed_dirs()]
    found = groups(folders)
    options = "\n".join(f"  {name:<14} {', '.join(each)}" for name, each in found.items())
    failures = "\n".join(
        f"  {name:<14} {summary(folders, 'failure', name)}".rstrip() for name in found["failure"]
    )
    return HELP["train"].replace("{groups}", options).replace("{failures}", failures)


def _study_help() -> str:
    from ecrl_cli.config.conf_paths import conf_dir, installed_dirs, summary
    from ecrl_cli.studies.frame.registry import load_study, names

    folders = [conf_dir(), *installed_dirs()]
    # The first comment of a study's YAML is fast to read; a study of an installed package need not
    # have one.
    said = {
        name: summary(folders, "study", name) or load_study(name).description for name in names()
    }
    return HELP["study"].replace(
        "{studies}", "\n".join(f"  {name:<20} {text}" for name, text in said.items())
    )


def _hear_interrupt() -> None:
    """Restores SIGINT's handler where SIGINT was ignored at start (`ecrl ... &` in a script, many
    CI runners), so that long commands stop cleanly: such runners send SIGINT first and then
    SIGKILL. SIGHUP stays ignored, for nohup.
    """
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _run(verb: str, words: list[str], debug: bool) -> int:
    """The verb is a function in the module of its name, imported on demand: `ecrl --help` starts
    fast, and `verify` does not import Hydra.
    """
    if verb == "completion":
        return _completion(words)
    if verb in ("train", "study", "audit"):
        _hear_interrupt()
    command = getattr(import_module(f"ecrl_cli.cli.{verb}"), verb)
    return int(command(words, debug=debug) if verb == "train" else command(words))


def _completion(words: list[str]) -> int:
    if len(words) != 1 or words[0] not in COMPLETION:
        raise ConfigError(
            "completion",
            f"must be one of {', '.join(COMPLETION)}, got {shown(' '.join(words))}",
            "write `ecrl completion bash`",
        )
    from ecrl_cli.config.conf_paths import conf_dir, groups, installed_dirs
    from ecrl_cli.config.keys import leaves

    joining = ("suite", "matrix")
    choices = [
        f"{'+' if name in joining else ''}{name}={option}"
        for name, found in groups([conf_dir(), *installed_dirs()]).items()
        for option in found
    ]
    sys.stdout.write(
        COMPLETION[words[0]]
        .replace("{verbs}", " ".join(VERBS))
        .replace("{keys}", " ".join([*choices, *(f"{key}=" for key in leaves())]))
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
