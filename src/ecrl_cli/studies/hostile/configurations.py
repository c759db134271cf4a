"""Configurations that would run code or access outside paths, in the file and on the command line."""

from __future__ import annotations

from functools import partial

from ecrl_cli.config.keys import sections
from ecrl_cli.studies.hostile.malicious_input import MaliciousInput
from ecrl_cli.studies.hostile.store_fixture import Scene

CALL = {"_target_": "builtins.open", "_args_": ["x", "w"]}
TREES: dict[str, dict[str, object]] = {
    **{f"_target_ in {section}": {section: {"_target_": "os.system"}} for section in sections()},
    "_target_ at the top": dict(CALL),
    "_target_ in a list": {"failure": {"steps": [CALL]}},
    "_partial_": {"model": {"_partial_": True}},
    "_recursive_": {"model": {"_recursive_": True}},
    "an environment variable": {"suite_name": "${oc.env:HOME}"},
    "an environment variable within": {"suite_name": "a${oc.env:AWS_SECRET_ACCESS_KEY,none}"},
    "a resolver that decodes": {"suite_name": "${oc.decode:'1'}"},
    "a resolver that nobody has": {"suite_name": "${eval:1+1}"},
    "an interpolation of itself": {"suite_name": "${suite_name}"},
    "an interpolation in a circle": {"suite_name": "${run_dir}", "run_dir": "${suite_name}"},
    "an interpolation that grows": {"suite_name": "${run_dir}${run_dir}", "run_dir": "${suite_name}${suite_name}"},
    "an unknown section": {"exploit": {"a": 1}},
    "a control character": {"suite_name": "a\x1b[31m"},
    "a path as a name": {"suite_name": "../../etc"},
    "a module as a model": {"model": {"name": "os.system"}},
}
COMMANDS: dict[str, tuple[str, ...]] = {
    "hydra.run.dir": ("hydra.run.dir=/",),
    "hydra.launcher": ("hydra.launcher._target_=os.system",),
    "hydra/launcher": ("hydra/launcher=submitit",),
    "hydra.job.chdir": ("hydra.job.chdir=true",),
    "hydra.callbacks": ("+hydra.callbacks.x._target_=os.system",),
    "hydra.output_subdir": ("hydra.output_subdir=/tmp",),
    "_target_": ("model._target_=os.system",),
    "+_target_": ("+dataset._target_=os.system",),
    "oc.env": ("suite_name=${oc.env:HOME}",),
    "a package": ("model@_global_=small_cnn",),
}
FILES = {
    "_target_": "# @package _global_\nmodel: {_target_: os.system}\n",
    "hydra.run.dir": "# @package _global_\nhydra: {run: {dir: /tmp/elsewhere}}\n",
    "hydra.callbacks": "# @package _global_\nhydra: {callbacks: {x: {_target_: os.system}}}\n",
    "hydra.job.env_set": "# @package _global_\nhydra: {job: {env_set: {LD_PRELOAD: evil.so}}}\n",
    "oc.env": "# @package _global_\nsuite_name: ${oc.env:HOME}\n",
    "a YAML tag": "# @package _global_\nsuite_name: !!python/object/apply:os.system [touch x]\n",
    "aliases a billion": "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
    "two megabytes": "# @package _global_\nsuite_name: " + "x" * 2_000_000 + "\n",
    "nested deep": "# @package _global_\nsuite_name: " + "[" * 5000 + "]" * 5000 + "\n",
}


def inputs() -> list[MaliciousInput]:
    found = [MaliciousInput("configuration", name, f"build {name}", ("ConfigError",)) for name in TREES]
    for name, words in COMMANDS.items():
        found.append(MaliciousInput("command line", name, "command", ("exit 2",), words=("train", *words, "run_dir={outside}/new", "--cfg", "job")))
    for name, text in FILES.items():
        words = ("train", "--config-dir", "{run}/conf", "+suite=evil", "run_dir={outside}/new", "--cfg", "job")
        found.append(MaliciousInput("--config-dir", name, "command", ("exit 2",), partial(_file, text), words))
    return found


def _file(text: str, scene: Scene) -> None:
    folder = scene.root / "conf" / "suite"
    folder.mkdir(parents=True)
    (folder / "evil.yaml").write_text(text, encoding="utf-8")
