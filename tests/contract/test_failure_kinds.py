"""Every registered kind of failure keeps to the contract of kinds; and the docs list them all."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from ecrl_cli.config.conf_paths import conf_dir
from ecrl_cli.config.failure_kinds import BUILTIN
from ecrl_cli.config.fault_spec import FAILURES
from ecrl_cli.errors import ConfigError
from ecrl_cli.failures.fault_kind import Ends, FaultKind, fault_kind, recorded_kind, table
from tests.contract.failure_kinds import FailureKindContract
from tests.test_architecture import PACKAGE, modules

ROOT = Path(__file__).parents[2]


class TestEveryKind(FailureKindContract):
    @pytest.fixture(params=FAILURES.names())
    def kind(self, request: pytest.FixtureRequest) -> FaultKind:
        return fault_kind(request.param)

    @pytest.fixture
    def conf(self) -> Path:
        return conf_dir()


def test_the_docs_have_the_table_of_all_kinds() -> None:
    assert table() in (ROOT / "docs" / "failures.md").read_text(encoding="utf-8")


def test_each_of_ours_has_a_class_of_its_own() -> None:
    assert len({type(fault_kind(name)) for name in BUILTIN}) == len(BUILTIN)


def test_a_name_in_records_that_nobody_knows_here_stands_for_a_kind_that_explains_no_death() -> (
    None
):
    unknown = recorded_kind("meteor")
    assert unknown.death is None and not unknown.death_tells and not unknown.others_go_on


def test_no_kind_imports_torch() -> None:
    """Neither itself nor by what it imports."""
    code = (
        f"import sys, {', '.join(sorted({value.partition(':')[0] for value in BUILTIN.values()}))};"
        " sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# What makes a kind break its contract, and the test that must fail then.
BREACHES: dict[str, tuple[str, dict[str, object], str]] = {
    "leaves no trace": (
        "slow_rank",
        {"trace": lambda kind, fault: ()},
        "test_records_that_lack_its_trace_are_not_valid",
    ),
    "is said to end nothing and has no trace": (
        "kill",
        {"ends": Ends.NOTHING},
        "test_what_it_says_of_itself_is_consistent",
    ),
    "does not say how its victim dies": (
        "raise",
        {"death": None},
        "test_what_it_says_of_itself_is_consistent",
    ),
    "strikes at a time without a signal": (
        "stop",
        {"sends": None},
        "test_what_it_says_of_itself_is_consistent",
    ),
    "is another one by its file": (
        "nan",
        {"description": "the loss is infinite"},
        "test_its_yaml_file_names_it_and_begins_with_its_description",
    ),
    "says nothing of itself": (
        "oom",
        {"description": ""},
        "test_it_describes_itself_in_one_sentence",
    ),
    "is called otherwise than registered": (
        "eio",
        {"name": "enospc"},
        "test_it_is_registered_under_its_own_name",
    ),
    "lasts and takes no time": ("exit", {"lasts": 2}, "test_what_it_says_of_itself_is_consistent"),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_the_contract_notices_a_kind_that(
    breach: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name, changes, test = BREACHES[breach]
    kind = fault_kind(name)
    for attribute, value in changes.items():
        monkeypatch.setattr(type(kind), attribute, value)
    given = {"kind": kind, "conf": conf_dir(), "tmp_path": tmp_path}
    method = getattr(FailureKindContract(), test)
    with pytest.raises(AssertionError):
        method(**{argument: given[argument] for argument in inspect.signature(method).parameters})


def test_what_is_registered_must_be_a_kind_of_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (object(), FaultKind, type(fault_kind("kill"))):
        monkeypatch.setattr(type(FAILURES), "load", lambda registry, name, wrong=wrong: wrong)
        with pytest.raises(ConfigError, match="no FaultKind of that name"):
            fault_kind("another")


def test_nobody_compares_the_name_of_a_kind() -> None:
    """They ask its object, so that a new one is right wherever one is asked. The study `failures`
    names what it leaves out.
    """
    wrong = []
    for path in modules():
        compared = [
            node
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Compare)
        ]
        for node in compared if path != PACKAGE / "config" / "studies.py" else ():
            texts = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
            asked = {getattr(part, "attr", getattr(part, "id", "")) for part in ast.walk(node)}
            if texts & BUILTIN.keys() and asked & {"kind", "what"}:
                wrong.append(f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}")
    assert not wrong, "\n".join(wrong)
