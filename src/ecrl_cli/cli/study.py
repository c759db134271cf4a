"""`ecrl study`: composes and checks the studies, then runs each; the command exits with the worst
exit code.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override

from ecrl_cli.cli.arguments import Arguments, files_named, parse, read_overrides, values
from ecrl_cli.cli.compose import compose, expand, initialized, search_override
from ecrl_cli.cli.console import restrict, say
from ecrl_cli.cli.hydra_habits import refuse_commas
from ecrl_cli.config.codec import encode
from ecrl_cli.config.conf_paths import check_files, user_folders
from ecrl_cli.config.keys import quote
from ecrl_cli.config.machine import check_torch
from ecrl_cli.config.omegaconf_bridge import yaml_text
from ecrl_cli.config.registry import did_you_mean
from ecrl_cli.config.studies import study_keys
from ecrl_cli.config.study import StudyConfig, build_study, sized, study_id, study_name
from ecrl_cli.errors import STOPPED, ConfigError, EcrlError, shown
from ecrl_cli.studies.frame.registry import names

PRIMARY = "study"
ALL = "all"
_AROUND = tuple(f.name for f in dataclasses.fields(StudyConfig))
_WORST_FIRST = (*STOPPED, 1, 5, 2, 3, 0)


def study(argv: Sequence[str], *, say: Callable[[str], None] = say) -> int:
    """The exit code of the studies that `argv` asks for. Raises EcrlError for bad input, with
    nothing written.
    """
    arguments = parse(argv, "study")
    refuse_commas(arguments.overrides, "ecrl study", arguments.multirun)
    configs = _configs(arguments)
    if arguments.show:
        as_json = (
            json.dumps([encode(config) for config in configs], indent=2) + "\n"
            if arguments.json
            else ""
        )
        sys.stdout.write(as_json or "---\n".join(map(option_file, configs)))
        return 0
    check_torch()
    places = _places(configs, swept=len(configs) > 1 or arguments.multirun)
    # Imported here: scipy and pandas take a second, and bad input should fail before that.
    from ecrl_cli.studies.frame.runner import check_folder, replay, run_study

    restrict(private=False)
    if configs[0].trial:
        return max(replay(config) for config in configs)
    for config, place in zip(configs, places, strict=True):
        check_folder(config, place)
    codes: dict[str, int] = {}
    for config, place in zip(configs, places, strict=True):
        try:
            codes[str(place)] = run_study(config, place, say)
        except EcrlError as error:
            # a study that cannot run here must not keep the others from running
            if len(configs) == 1:
                raise
            say(f"{config.name}: error: {error.line()}")
            codes[str(place)] = error.exit_code
        if codes[str(place)] in STOPPED:
            break
    if arguments.json:
        sys.stdout.write(
            json.dumps(
                {
                    place: _result(Path(place)) | {"exit_code": code}
                    for place, code in codes.items()
                },
                indent=2,
            )
            + "\n"
        )
    return next((code for code in _WORST_FIRST if code in codes.values()), max(codes.values()))


def option_file(config: StudyConfig) -> str:
    """The resolved configuration of a study as YAML that composes to it again, as
    `DIR/study/NAME.yaml`; what is set around it stands in the command of its first line.
    """
    around = {
        key: getattr(config, key)
        for key in _AROUND
        if key != "study" and getattr(config, key) != getattr(StudyConfig, key)
    }
    typed = "".join(
        f" {key}={quote(value) if isinstance(value, str) else value}"
        for key, value in around.items()
    )
    return (
        f"# {study_name(config)}; as DIR/study/NAME.yaml: ecrl study --config-dir DIR"
        f" study=NAME{typed}\n{yaml_text(encode(config.study))}"
    )


def _result(place: Path) -> dict[str, object]:
    path = place / "result.json"
    document: dict[str, object] = (
        json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    )
    return document


def _configs(arguments: Arguments) -> list[StudyConfig]:
    written = arguments.groups.get("study", [])
    # a study of an installed package needs no YAML
    known = [*written, *(name for name in names() if name not in written)]
    overrides = _with_all_named(arguments.overrides)
    check_files(user_folders(arguments.search), files_named(overrides, arguments.groups))
    _register(_check(overrides, known), written)
    with initialized(PRIMARY):
        jobs = [
            _sized(job) for job in expand([override.input_line or "" for override in overrides])
        ]
        configs = [
            build_study(compose(PRIMARY, [*job, *search_override(arguments.search)]))
            for job in jobs
        ]
    folders = [study_name(config) for config in configs]
    if repeated := next((name for name in folders if folders.count(name) > 1), None):
        raise ConfigError(
            "sweep", f"study {repeated} comes up twice", "look for a value that is listed twice"
        )
    return configs


def _sized(job: list[str]) -> list[str]:
    """The overrides of one study, `study.trials` in its own keys; as it stands for one that has
    this key where a trial is run again, whose command says every key. A value that is no number is
    left to the check of the key.
    """
    texts = dict(text.split("=", 1) for text in job)
    trials = texts.get("study.trials", "")
    if not trials.isdecimal() or int(trials) < 1:
        return job
    if "trial" in texts and "trials" in {
        each.name for each in dataclasses.fields(study_keys(texts[PRIMARY]) or StudyConfig)
    }:
        return job
    typed = {key.removeprefix("study.") for key in texts if key.startswith("study.")}
    own = {
        f"study.{key}": value for key, value in sized(texts[PRIMARY], int(trials), typed).items()
    }
    return [
        f"{key}={value}"
        for key, value in {
            **{key: text for key, text in texts.items() if key != "study.trials"},
            **own,
        }.items()
    ]


def _with_all_named(overrides: Iterable[Override]) -> list[Override]:
    """Expands `study=all` to the names of all studies."""
    every_study = read_overrides([f"study={','.join(names())}"])
    return [
        each
        for o in overrides
        for each in (every_study if o.key_or_group == PRIMARY and values(o) == [ALL] else [o])
    ]


def _register(chosen: Iterable[str], written: list[str]) -> None:
    """Registers the keys of each chosen study with Hydra as `study/keys-NAME`, for its YAML to
    build on; a study without a YAML gets them as the option itself.
    """
    for name in chosen:
        if keys := study_keys(name):
            for option in (f"keys-{name}", *((name,) if name not in written else ())):
                ConfigStore.instance().store(
                    group="study", name=option, node=encode(keys()), provider="ecrl"
                )


def _check(overrides: Iterable[Override], options: list[str]) -> list[str]:
    """The chosen studies. ConfigError for a study that does not exist, or a key that none of them
    has.
    """
    chosen = [
        str(value)
        for override in overrides
        if override.key_or_group == "study"
        for value in values(override)
    ]
    if not chosen:
        raise ConfigError(
            "study", "has no value", f"give one of {', '.join(options)}: study=NAME, or study=all"
        )
    for name in chosen:
        if name not in options:
            raise ConfigError(
                "study",
                f"must be one of {', '.join(options)}, got {shown(name)}",
                did_you_mean(name, [*options, ALL]),
            )
    keys = {
        f"study.{f.name}"
        for name in chosen
        if (found := study_keys(name))
        for f in dataclasses.fields(found)
    }
    keys |= {"study.trials"} if keys else set()  # means something to every study, if only a refusal
    for override in overrides:
        key = override.key_or_group
        if key not in _AROUND and key not in keys and keys:
            remedy = (
                did_you_mean(key, [*_AROUND, *keys])
                or f"known: {', '.join(sorted([*_AROUND, *keys]))}"
            )
            raise ConfigError(key, f"unknown key {shown(key)}", remedy)
    return chosen


def _places(configs: list[StudyConfig], swept: bool) -> list[Path]:
    if not swept:
        return [
            (
                Path(configs[0].run_dir).expanduser()
                if configs[0].run_dir
                else Path("outputs") / study_name(configs[0])
            ).absolute()
        ]
    content = hashlib.sha256("\n".join(sorted(map(study_id, configs))).encode()).hexdigest()[:8]
    root = (
        Path(configs[0].run_dir).expanduser()
        if configs[0].run_dir
        else Path("outputs") / f"studies-{content}"
    )
    return [(root / study_name(config)).absolute() for config in configs]
