"""The house: fsync and rename stand in one place, the judging side never imports torch. Which room
may import which is a contract of import-linter (pyproject.toml).
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from ecrl_cli.config.failure_kinds import BUILTIN, FAILURE_KINDS
from ecrl_cli.config.launchers import LAUNCHERS
from ecrl_cli.config.recoveries import RECOVERIES
from ecrl_cli.config.strategies import STRATEGIES
from tests.environments import ENVIRONMENTS

PACKAGE = Path(__file__).parent.parent / "src" / "ecrl_cli"
# Torch-free for good: what supervises, judges and prints.
TORCH_FREE = (
    "ecrl_cli.cli.main",
    "ecrl_cli.runs.run",
    "ecrl_cli.runs.sweep",
    "ecrl_cli.studies.frame.runner",
    "ecrl_cli.supervision.supervisor",
    "ecrl_cli.history",
    "ecrl_cli.metrics.document",
    "ecrl_cli.verify.verify_run",
    "ecrl_cli.audit.audit",
    "ecrl_cli.report.build",
    "ecrl_cli.checkpoint.store.integrity",
    "ecrl_cli.checkpoint.store.store",
    "ecrl_cli.checkpoint.writer.server",
    "ecrl_cli.failures.plan",
    "ecrl_cli.failures.injector",
    "ecrl_cli.supervision.launch.writer_main",
    "ecrl_cli.data.order",
    "ecrl_cli.data.preflight",
)
_MOVERS = ("fsync", "fdatasync", "sync", "rename", "replace", "renames", "move")
# What the field has a word for (docs/concepts.md); the names that stood for it once.
RETIRED = {
    "bereaved": "peers lost",
    "blow": "injected fault",
    "bury": "mark dead",
    "course": "spec",
    "crew": "worker pool, members",
    "deed": "injected fault",
    "farewell": "graceful stop",
    "graves": "abandoned groups",
    "heard": "messages, or the callback by what calls it",
    "heed": "check",
    "janitor": "sweep of leftovers",
    "meeting": "rendezvous",
    "mending": "repair",
    "mortal": "parent-death signal",
    "pulse": "heartbeat",
    "seat": "rank assignment",
    "settle": "what is done: drain, resolve, collect",
    "shelf": "bytes in memory",
    "story": "scenario",
    "strike": "fault",
    "syndrome": "bit flip",
    "tally": "counts",
    "testify": "dump of stacks",
    "testimony": "survivor report",
    "vigil": "watchdog",
    "vouch": "reference",
    "witness": "probe",
}
FORBIDDEN_CALLS = {"eval", "exec", "instantiate", "get_class", "get_method", "unsafe_load"}


@cache
def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def floor_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree))


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
        ".__init__"
    )


def for_types_only(tree: ast.Module) -> set[int]:
    """The lines under `if TYPE_CHECKING`."""
    blocks = [
        node
        for node in nodes(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    ]
    return {
        inner.lineno
        for block in blocks
        for statement in block.body
        for inner in ast.walk(statement)
        if isinstance(inner, ast.stmt)
    }


def test_what_is_imported_is_declared() -> None:
    """Another package's dependency may be gone with its next version."""
    project = tomllib.loads((PACKAGE.parent.parent / "pyproject.toml").read_text())["project"]
    declared = [
        *project["dependencies"],
        *(
            each
            for name, extra in project["optional-dependencies"].items()
            if name != "dev"
            for each in extra
        ),
    ]
    names = {re.split(r"[^\w.-]", each)[0].lower().replace("-", "_") for each in declared}
    provided = {
        "PIL": "pillow",
        "hydra": "hydra_core",
        "yaml": "pyyaml",
        "submitit": "hydra_submitit_launcher",
        "hydra_plugins": "hydra_submitit_launcher",
    }
    provided |= {"mlflow": "mlflow_skinny", "opentelemetry": "opentelemetry_sdk"}
    ours = {"ecrl", "ecrl_cli", *sys.stdlib_module_names}
    wrong = set()
    for path in modules():
        unseen = for_types_only(parsed(path))
        tops = {
            name.partition(".")[0] for line, name in imported(parsed(path)) if line not in unseen
        }
        wrong |= {
            f"{path.relative_to(PACKAGE)}: {top}"
            for top in tops - ours
            if provided.get(top, top) not in names
        }
    assert not wrong, "\n".join(sorted(wrong))
    told = (
        (PACKAGE.parent.parent / "CONTRIBUTING.md")
        .read_text()
        .partition("## Why each dependency is here")[2]
        .lower()
        .replace("-", "_")
    )
    assert not {name for name in names if name not in told}


def test_fsync_and_rename_stand_in_one_file() -> None:
    wrong = []
    for path in modules():
        if path == PACKAGE / "storage" / "durable.py":
            continue
        for node in nodes(parsed(path)):
            if not (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
            ):
                continue
            if node.func.value.id in ("os", "shutil") and node.func.attr in _MOVERS:
                wrong.append(f"{path.relative_to(PACKAGE)}:{node.lineno}: os.{node.func.attr}")
    assert not wrong, "\n".join(wrong)


def test_nothing_rests_on_the_inside_of_hydra() -> None:
    named = [
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in modules()
        for _, name in imported(parsed(path))
        if "hydra._" in name
    ]
    assert not named, "\n".join(named)


def test_modules_for_gpus_are_imported_on_a_gpu_alone() -> None:
    """Each `*_gpu.py` is imported only inside of `if ... .type == "cuda":`, so that a run on the
    CPU loads none.
    """
    modules_for_gpus = {module_name(path) for path in modules() if path.stem.endswith("_gpu")}
    assert modules_for_gpus
    wrong = []
    for path in modules():
        if path.stem.endswith("_gpu"):
            continue
        on_gpu = {
            inner.lineno
            for node in nodes(parsed(path))
            if isinstance(node, ast.If) and ast.unparse(node.test).endswith(".type == 'cuda'")
            for statement in node.body
            for inner in ast.walk(statement)
            if isinstance(inner, ast.stmt)
        }
        wrong += [
            f"{path.relative_to(PACKAGE)}:{line}: {name}"
            for line, name in imported(parsed(path))
            if name in modules_for_gpus and line not in on_gpu
        ]
    assert not wrong, "\n".join(wrong)


def test_nothing_unpickles_or_evaluates() -> None:
    wrong = []
    for path in modules():
        tree = parsed(path)
        unpicklers = [
            (line, name)
            for line, name in imported(tree)
            if name.split(".")[0] in ("pickle", "marshal", "shelve")
        ]
        wrong += [f"{path.relative_to(PACKAGE)}:{line}: {name}" for line, name in unpicklers]
        for node in nodes(tree):
            if not isinstance(node, ast.Call):
                continue
            name = (
                node.func.id
                if isinstance(node.func, ast.Name)
                else node.func.attr
                if isinstance(node.func, ast.Attribute)
                else ""
            )
            owner = (
                node.func.value.id
                if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
                else ""
            )
            safe_load = any(
                k.arg == "weights_only"
                and isinstance(k.value, ast.Constant)
                and k.value.value is True
                for k in node.keywords
            )
            bad = (name in FORBIDDEN_CALLS and owner not in ("model",)) or (
                owner == "torch" and name == "load" and not safe_load
            )
            if bad:
                wrong.append(f"{path.relative_to(PACKAGE)}:{node.lineno}: {owner}.{name}")
    assert not wrong, "\n".join(wrong)


# Each of the modules in a process of its own, forked from one that has imported nothing of ours:
# starting Python each time would take longer.
_TELLS = """
import importlib, os, sys, traceback
import hydra, numpy
for module in sys.argv[1:]:
    if (child := os.fork()) == 0:
        try:
            importlib.import_module(module)
        except BaseException:
            traceback.print_exc()
            os._exit(2)
        os._exit("torch" in sys.modules)
    print(module, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.fixture(scope="module")
def importing() -> dict[str, str]:
    """By module: 0 if it was imported, and torch was not."""
    done = subprocess.run(
        [sys.executable, "-c", _TELLS, *TORCH_FREE], stdout=subprocess.PIPE, text=True, check=True
    )
    return dict(line.split() for line in done.stdout.splitlines())


@pytest.mark.parametrize("module", TORCH_FREE)
def test_the_judging_side_never_imports_torch(importing: dict[str, str], module: str) -> None:
    assert importing[module] == "0", f"{module} imports torch"


def test_files_and_functions_stay_small() -> None:
    wrong = []
    for path in modules():
        text = path.read_text()
        if text.count("\n") > 600:
            wrong.append(f"{path.relative_to(PACKAGE)}: {text.count(chr(10))} lines")
        for node in nodes(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = (
                    node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
                )
                length = (node.end_lineno or 0) - body[0].lineno + 1
                if length > 70:
                    wrong.append(
                        f"{path.relative_to(PACKAGE)}:{node.lineno}: {node.name} has {length} lines"
                    )
    assert not wrong, "\n".join(wrong)


def test_nobody_compares_the_name_of_a_variant() -> None:
    """They ask its object, so that a new one is right wherever one is asked. The replications speak
    of the published strategies.
    """
    # words of other things too: with the keys that they would be asked of
    common = {"none": {"strategy", "kind"}, "skip": {"recovery"}}
    variants = (
        {*STRATEGIES.builtin, *RECOVERIES.builtin, *LAUNCHERS.builtin, *FAILURE_KINDS}
        - BUILTIN.keys()
        - common.keys()
    )
    wrong = []
    for path in modules():
        for node in nodes(parsed(path)):
            if not isinstance(node, ast.Compare) or floor_of(path) == "replication":
                continue
            named = {
                part.value
                for part in ast.walk(node)
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
            }
            asked = {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
            if named & variants or any(
                word in named and keys & asked for word, keys in common.items()
            ):
                wrong.append(f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}")
    assert not wrong, "\n".join(wrong)


def test_text_is_utf8_whatever_the_locale() -> None:
    wrong = []
    for path in modules():
        for call in (node for node in nodes(parsed(path)) if isinstance(node, ast.Call)):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            if name in ("read_text", "write_text") and "encoding" not in {
                keyword.arg for keyword in call.keywords
            }:
                wrong.append(f"{path.relative_to(PACKAGE)}:{call.lineno}: {name} without encoding=")
    assert not wrong, "\n".join(wrong)


def named(node: ast.AST) -> str:
    """The name that `node` gives to something: a class, a function, a parameter, a variable or an
    attribute; else empty.
    """
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.arg(arg=name):
            return name
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return name
    return ""


def test_no_name_is_a_word_that_was_given_up_for_the_fields() -> None:
    names = [(path, path.stem) for path in modules()]
    names += [
        (path, name) for path in modules() for node in nodes(parsed(path)) if (name := named(node))
    ]
    words = (
        (path, name, word.lower())
        for path, name in names
        for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name)
    )
    said = [
        f"{path.name}: {name}: say {RETIRED[found]}"
        for path, name, word in words
        if (found := word.removesuffix("s")) in RETIRED or (found := word) in RETIRED
    ]
    assert not said


def test_every_file_that_an_environment_runs_exists() -> None:
    files = {
        test.partition("::")[0]
        for environment in ENVIRONMENTS.values()
        for test in environment.tests
    }
    assert [name for name in sorted(files) if not (Path(__file__).parent / name).is_file()] == []
