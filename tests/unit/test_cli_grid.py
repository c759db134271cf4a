"""From a command line to the runs it means: Hydra's grid, our groups, the user's own folders."""

from __future__ import annotations

import copy
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

# the peer; the tool itself keeps to what is public
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser

from ecrl_cli.cli import arguments
from ecrl_cli.cli.arguments import parse, typed
from ecrl_cli.cli.compose import PRIMARY, Grid, compose, compose_grid, expand, initialized
from ecrl_cli.cli.main import main
from ecrl_cli.config.build import build
from ecrl_cli.config.conf_paths import conf_dir, groups
from ecrl_cli.config.identity import reference_id, run_name
from ecrl_cli.config.keys import leaves, quote
from ecrl_cli.config.omegaconf_bridge import plain
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import ConfigError

ROOT = Path(__file__).parents[2]
SUITES = groups([conf_dir()])["suite"]


def grid(text: str) -> Grid:
    return compose_grid(parse(text.split()))


def one(text: str) -> RunConfig:
    (cell,) = grid(text).cells
    return cell.config


def test_no_arguments_are_the_schemas_defaults() -> None:
    assert one("") == RunConfig()


KEYS = [key for key in leaves() if key not in ("elastic.schedule",)]


@pytest.fixture(scope="module")
def wrong() -> dict[str, Any]:
    """What is composed where every key is typed, with a value that none can have; the value stands
    in the tree of the defaults alone too.
    """
    texts = [f"{key}=[[1]]" for key in KEYS]
    with pytest.raises(ConfigError) as caught:
        grid(" ".join(texts))
    assert caught.value.key in KEYS, "all of them were taken, and the first was refused"
    with initialized(PRIMARY):
        return {"all": plain(compose(PRIMARY, texts)), "none": plain(compose(PRIMARY, []))}


@pytest.mark.parametrize("key", KEYS)
def test_every_key_of_the_schema_can_be_typed(wrong: dict[str, Any], key: str) -> None:
    *above, last = key.split(".")
    typed, tree = wrong["all"], copy.deepcopy(wrong["none"])
    inner = tree
    for name in above:
        typed, inner = typed[name], inner[name]
    inner[last] = typed[last]
    with pytest.raises(ConfigError) as caught:
        build(tree, frozenset((key,)))
    assert caught.value.key == key, "the key did not reach config.build"


ARMS = ("clean", "ref", "ref2", "blk", "ovl")
SCALES = ("paper", "cpu", "smoke")


@pytest.fixture(scope="module")
def scales() -> dict[str, Any]:
    """What each option of `scale` composes."""
    with initialized(PRIMARY):
        return {scale: plain(compose(PRIMARY, [f"scale={scale}"]))["scale"] for scale in SCALES}


@pytest.fixture(scope="module")
def composed() -> Callable[[str], dict[str, Any]]:
    """The arms of a suite as Hydra composes them, once for all scales: a scale changes its own
    node, and `build` does the rest.
    """

    @cache
    def arms(suite: str) -> dict[str, Any]:
        with initialized(PRIMARY):
            return {
                arm: plain(compose(PRIMARY, [f"+suite={suite}", f"variant={arm}"])) for arm in ARMS
            }

    return arms


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("scale", SCALES)
def test_the_arms_of_every_suite_must_end_alike_at_every_scale(
    scales: dict[str, Any], composed: Callable[[str], dict[str, Any]], suite: str, scale: str
) -> None:
    typed = frozenset(("suite", "scale", "variant"))
    configs = [build(arm | {"scale": scales[scale]}, typed) for arm in composed(suite).values()]
    assert len({reference_id(config) for config in configs}) == 1
    plans = {config.variant.name: config.failure.steps for config in configs}
    assert plans["clean"] == plans["ref"] == plans["ref2"] == ()
    assert (
        len(plans["blk"]) == {"exp2": 0, "mtbf": 0, "digits-replicas": 3}.get(suite, 2)
        and plans["blk"] == plans["ovl"]
    )
    assert len({config.world_size for config in configs}) == 1
    strategies = [config.checkpoint.strategy for config in configs]
    assert strategies == ["none", "blocking", "blocking", "blocking", "overlapped"]


@pytest.mark.parametrize("scale", SCALES)
def test_a_typed_scale_makes_the_same_runs(
    scales: dict[str, Any], composed: Callable[[str], dict[str, Any]], scale: str
) -> None:
    """As those of the test before."""
    typed = [
        cell.config for cell in grid(f"-m +suite=digits-cnn scale={scale} variant=ref,blk").cells
    ]
    arms = composed("digits-cnn")
    assert typed == [
        build(arms[arm] | {"scale": scales[scale]}, frozenset(("suite", "scale", "variant")))
        for arm in ("ref", "blk")
    ]


def test_a_published_suite_is_the_published_protocol() -> None:
    config = one("+suite=cifar10-r50-late variant=blk")
    assert (config.dataset.name, config.model.name, config.target_steps, config.world_size) == (
        "cifar10",
        "resnet50",
        1600,
        4,
    )
    assert (config.failure.kind, config.failure.steps, config.failure.rank) == (
        "exit",
        (800, 1400),
        0,
    )
    assert (
        config.global_batch,
        config.checkpoint.every,
        config.checkpoint.max_inflight,
        config.optimizer.lr,
    ) == (256, 50, 4, 0.1)
    assert one("+suite=cifar100-r18-base variant=ovl").failure.steps == (400, 1200)


@pytest.mark.parametrize("scale", ["paper", "gpu", "cpu", "smoke"])
def test_experiment_2_goes_from_two_ranks_to_one_half_way_at_every_scale(scale: str) -> None:
    cells = grid(f"+matrix=exp2 scale={scale}").cells
    ref, again, elastic = (cell.config for cell in cells)
    assert again.variant.name == "ref2"
    assert (ref.variant.name, ref.elastic.schedule, ref.world_size, elastic.world_size) == (
        "ref",
        {},
        2,
        2,
    )
    (change,), every = elastic.elastic.schedule, elastic.checkpoint.every
    assert (
        elastic.elastic.schedule[change] == 1
        and change % every == 0
        and abs(change - elastic.target_steps / 2) <= every / 2
    )
    assert reference_id(ref) == reference_id(elastic)
    assert scale != "paper" or elastic.elastic.schedule == {400: 1}


@pytest.mark.parametrize(("scale", "factor"), [("paper", 1.0), ("smoke", 0.02)])
def test_a_matrix_gives_the_papers_mean_and_the_scale_shortens_it(
    scale: str, factor: float
) -> None:
    cells = [
        cell.config for cell in grid(f"+matrix=failure-rate scale={scale} variant=blk seed=1").cells
    ]
    assert [config.failure.mtbf_steps for config in cells] == [
        mean * factor for mean in (100, 200, 400, 800)
    ]
    assert len({reference_id(config) for config in cells}) == 1
    (own,) = grid(
        f"+matrix=failure-rate scale={scale} variant=blk seed=1 failure.mtbf_steps=30"
    ).cells
    assert own.config.failure.mtbf_steps == 30


@pytest.mark.parametrize(
    "matrix",  # and fewer values of what is the same for all arms
    [
        *(
            "exp1",
            "exp2",
            "exp3",
            "exp4 +suite=cifar10-r18-late",
            "sensitivity checkpoint.every=10 checkpoint.max_inflight=1",
        ),
        *("state-size model=resnet18 optimizer=sgd", "failure-rate", "storage"),
    ],
)
def test_every_matrix_that_compares_arms_has_the_noise_floor(matrix: str) -> None:
    seconds = {
        cell.config.variant.name: cell.config
        for cell in grid(f"+matrix={matrix} scale=smoke seed=1").cells
    }
    assert reference_id(seconds["ref2"]) == reference_id(seconds["ref"])


@pytest.mark.parametrize("scale", ["paper", "gpu", "cpu", "smoke"])
def test_the_sweep_of_intervals_changes_nothing_but_the_interval(scale: str) -> None:
    """The same steps at each interval, and failures that lie on no checkpoint: each has steps to do
    again.
    """
    cells = [
        cell.config
        for cell in grid(
            f"+matrix=sensitivity scale={scale} variant=blk seed=1 checkpoint.max_inflight=1"
        ).cells
    ]
    assert [config.checkpoint.every for config in cells] == [10, 25, 50, 100]
    assert len({config.target_steps for config in cells}) == 1
    assert all(step % config.checkpoint.every for config in cells for step in config.failure.steps)
    assert len({reference_id(config) for config in cells}) == 1


def test_the_embedded_suite_strikes_on_and_off_a_boundary() -> None:
    config = one("+suite=digits-cnn variant=blk")
    assert [step % config.checkpoint.every == 0 for step in config.failure.steps] == [True, False]
    assert config.failure.kind == "kill" and config.failure.rank == 1


def test_the_command_line_wins_over_suite_and_variant() -> None:
    config = one("+suite=digits-cnn variant=ref checkpoint=overlapped target_steps=90 model=vit")
    assert (config.checkpoint.strategy, config.target_steps, config.model.name) == (
        "overlapped",
        90,
        "vit",
    )


def test_a_scale_leaves_alone_what_was_typed() -> None:
    config = one(
        "+suite=digits-cnn scale=smoke variant=blk target_steps=100 checkpoint.every=10"
        " failure.steps=[20,33]"
    )
    assert (config.target_steps, config.checkpoint.every, config.failure.steps) == (
        100,
        10,
        (20, 33),
    )


def test_a_grid_is_every_combination_once() -> None:
    found = grid("-m +suite=digits-cnn,cifar10-r18-base variant=ref,blk,ovl seed=1,2")
    assert (
        found.swept
        and len({run_name(cell.config) for cell in found.cells}) == len(found.cells) == 12
    )


@pytest.mark.parametrize(
    "texts",
    [
        ["seed=1,2", "variant=ref,blk,ovl", "+suite=digits-cnn"],
        ["seed=1,2,3", "variant=ref", "seed=9"],
        [
            "seed=range(1,4)",
            "model=glob(*)",
            "optimizer.lr=choice(0.1,1e-3)",
            "failure.steps=[3,4]",
            "run_dir='a b,c'",
        ],
        [],
    ],
)
def test_a_grid_is_in_the_order_of_hydras_own_sweeper(texts: list[str]) -> None:
    with initialized("train"):
        parsed = OverridesParser.create(
            config_loader=GlobalHydra.instance().config_loader()
        ).parse_overrides(texts)
        assert expand(texts) == BasicSweeper.split_arguments(parsed, None)[0]


def test_flags_may_stand_anywhere() -> None:
    assert len(grid("seed=1,2 -m variant=ref").cells) == 2


def test_typed_keys_are_read_from_mappings_too() -> None:
    overrides = parse(["failure={steps: [3]}", "+suite=digits-cnn", "model=vit"]).overrides
    assert typed(overrides) == {"failure.steps", "suite", "model"}


def test_a_quoted_path_comes_back_as_it_was() -> None:
    for path in ("/a b/c", "/it's", "/x=y,z", "/[1]"):
        assert compose_grid(parse([f"run_dir={quote(path)}"])).cells[0].config.run_dir == path


@pytest.fixture
def user_conf(tmp_path: Path) -> Path:
    suite = tmp_path / "my conf" / "suite"
    suite.mkdir(parents=True)
    (suite / "mine.yaml").write_text("# @package _global_\nsuite_name: mine\ntarget_steps: 77\n")
    (suite / "own_sweep.yaml").write_text(
        "# @package _global_\nhydra: {sweeper: {params: {seed: '1,2'}}}\nsuite_name: own\n"
    )
    matrix = tmp_path / "my conf" / "matrix"
    matrix.mkdir()
    (matrix / "exp.yaml").write_text(
        "# @package _global_\nhydra: {sweeper: {params: {+suite: 'mine,digits-cnn', seed:"
        " '1,2,3'}}}\n"
    )
    return suite.parent


def test_a_users_suite_joins(user_conf: Path) -> None:
    (cell,) = compose_grid(parse(["--config-dir", str(user_conf), "+suite=mine"])).cells
    assert (cell.config.suite_name, cell.config.target_steps) == ("mine", 77)


def test_hydra_searchpath_joins_too(user_conf: Path) -> None:
    (cell,) = compose_grid(
        parse([f"hydra.searchpath=[{quote(f'file://{user_conf}')}]", "+suite=mine"])
    ).cells
    assert cell.config.suite_name == "mine"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder `conf` of an installed package, which the entry point in `ecrl.configs` names."""
    _install(tmp_path / "site", "labsuites.conf")
    suite = tmp_path / "site" / "labsuites" / "conf" / "suite"
    suite.mkdir(parents=True)
    (suite / "lab.yaml").write_text("# @package _global_\nsuite_name: lab\ntarget_steps: 78\n")
    (suite / "mine.yaml").write_text("# @package _global_\nsuite_name: not-mine\n")
    (suite / "digits-cnn.yaml").write_text("# @package _global_\nsuite_name: not-ours\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    yield suite.parent
    sys.modules.pop("labsuites", None)


def _install(site: Path, value: str) -> None:
    points = site / "labsuites-1.dist-info"
    points.mkdir(parents=True)
    (points / "METADATA").write_text("Metadata-Version: 2.1\nName: labsuites\nVersion: 1\n")
    (points / "entry_points.txt").write_text(f"[ecrl.configs]\nlabsuites = {value}\n")


def test_the_yaml_of_an_installed_package_joins_and_overrides_nothing(
    package: Path, user_conf: Path
) -> None:
    """ECRL's own file stands before the user's, and the user's before the package's."""
    assert (one("+suite=lab").suite_name, one("+suite=lab").target_steps) == ("lab", 78)
    assert [cell.config.suite_name for cell in grid("-m +suite=digits-cnn,lab").cells] == [
        "digits-cnn",
        "lab",
    ]
    (cell,) = compose_grid(parse(["--config-dir", str(user_conf), "+suite=mine"])).cells
    assert cell.config.suite_name == "mine"
    assert one("+suite=mine").suite_name == "not-mine"


def test_a_model_that_is_installed_without_a_yaml_is_answered_with_its_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though another name is near."""
    added = EntryPoint(name="resnet51", value="package:builder", group="ecrl.models")
    monkeypatch.setattr(
        arguments,
        "entry_points",
        lambda group, name: [added] if (group, name) == ("ecrl.models", "resnet51") else [],
    )
    with pytest.raises(
        ConfigError, match=r"it is installed, but brings no YAML file: write model\.name=resnet51"
    ):
        grid("model=resnet51")
    with pytest.raises(
        ConfigError,
        match=r"got 'big'; an option of your own is a file scale/NAME.yaml in --config-dir DIR$",
    ):
        grid("scale=big")


def test_the_help_lists_the_options_of_an_installed_package(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (package / "failure").mkdir()
    (package / "failure" / "flood.yaml").write_text("# water in the rack. At once\nkind: flood\n")
    assert main(["train", "--help"]) == 0
    assert re.search(
        r"^  failure .*\bflood\b.*^  flood +water in the rack$",
        capsys.readouterr().out,
        re.MULTILINE | re.DOTALL,
    )


@pytest.mark.parametrize("value", ["labsuites.conf", "json.decoder", ".conf"])
def test_an_entry_point_that_names_no_folder_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    _install(tmp_path / "site", value)
    monkeypatch.syspath_prepend(tmp_path / "site")
    with pytest.raises(
        ConfigError,
        match=(
            rf"ecrl.configs: the entry point 'labsuites' names '{re.escape(value)}', which is no"
            r" package"
        ),
    ):
        parse(["+suite=lab"])


def test_a_matrix_is_swept_without_m_and_can_be_narrowed(user_conf: Path) -> None:
    full = compose_grid(parse(["--config-dir", str(user_conf), "+matrix=exp"]))
    assert full.swept and full.matrix == "exp" and len(full.cells) == 6
    narrowed = compose_grid(parse(["--config-dir", str(user_conf), "+matrix=exp", "seed=9"]))
    assert {cell.config.seed for cell in narrowed.cells} == {9} and len(narrowed.cells) == 2


def test_a_suite_with_a_sweep_of_its_own_runs_alone(user_conf: Path) -> None:
    found = compose_grid(parse(["--config-dir", str(user_conf), "+suite=own_sweep"]))
    assert [cell.config.seed for cell in found.cells] == [1, 2]


def test_a_suite_with_a_sweep_of_its_own_is_not_swept_over(user_conf: Path) -> None:
    with pytest.raises(ConfigError, match="its grid would be lost"):
        compose_grid(parse(["--config-dir", str(user_conf), "-m", "+suite=own_sweep,mine"]))


def test_of_another_project_s_folder_only_the_files_that_take_part_are_checked(
    user_conf: Path,
) -> None:
    """Its own primary configuration and its other groups may lack values and be no YAML at all."""
    for name, text in {
        "config": "user: ???",
        "db/sql": "password: ???",
        "model/theirs": "name: ???",
        "paths/x": "\xff",
    }.items():
        file = user_conf / f"{name}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(text.encode("latin-1"))
    here = ["--config-dir", str(user_conf)]
    assert compose_grid(parse([*here, "+suite=mine"])).cells[0].config.target_steps == 77
    (user_conf / "suite" / "theirs.yaml").write_text(
        "# @package _global_\ndefaults: [mine, {override /model: theirs}]\n"
    )
    (user_conf / "matrix" / "theirs.yaml").write_text(
        "# @package _global_\nhydra: {sweeper: {params: {+suite: 'mine, theirs'}}}\n"
    )
    for words in (
        ["model=theirs"],
        ["-m", "model=vit,theirs"],
        ["+suite=theirs"],
        ["+matrix=theirs"],
    ):
        with pytest.raises(ConfigError, match=r"model/theirs.yaml:1: has no value \(\?\?\?\)"):
            compose_grid(parse([*here, *words]))


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("seed=1,2", "seed: has several values without -m; to sweep over them: ecrl -m seed=1,2"),
        (
            "failure=kill failure.steps=40,70",
            "failure.steps: takes one list; write 'failure.steps=[40,70]'",
        ),
        (
            "-m failure=kill failure.steps=40,70",
            "failure.steps: takes one list; write 'failure.steps=[40,70]'",
        ),
        (
            "--info all",
            (
                r"--info: is a flag of Hydra that is off; `--cfg job` shows what is composed"
                r" (docs/hydra.md)"
            ),
        ),
        ("-cn mine", "+suite=NAME (docs/hydra.md)"),
        ("--cfg=all", "`--cfg job` shows yours"),
        (
            "hydra/sweeper=optuna",
            "list the values with commas and -m: ecrl -m seed=1,2 (docs/hydra.md)",
        ),
        ("hydra.sweeper.n_trials=9", "list the values with commas and -m"),
        ("experiment=mine", "an experiment is a suite: +suite=NAME"),
        ("+trainer.x=1", "is judged by `ecrl audit -- COMMAND` (docs/audit.md)"),
        ("trainer.max_epochs=1", "did you mean target_steps?"),
    ],
)
def test_the_habits_of_a_hydra_user_are_answered_with_what_there_is(typed: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        grid(typed)
    assert says in refused.value.line() and all(
        (ROOT / page).exists() for page in re.findall(r"docs/[\w.]+md", refused.value.line())
    )


def test_a_sweep_over_lists_is_a_sweep() -> None:
    cells = grid(
        "-m dataset=digits failure=kill failure.steps=[40],[70] target_steps=100"
        " checkpoint.every=10"
    ).cells
    assert [cell.config.failure.steps for cell in cells] == [(40,), (70,)]


HYDRA_PAGE = (ROOT / "docs" / "hydra.md").read_text(encoding="utf-8")
OFF = re.findall(r"^\| `([^`]+)` \| [^|]{3,} \| [^|]{3,} \|$", HYDRA_PAGE, re.MULTILINE)


@pytest.mark.parametrize("typed", OFF)
def test_what_of_hydra_is_off_is_refused_in_one_line(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *shlex.split(typed)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("ecrl: error: E-config ") and said.count("\n") == 1 and "; " in said
    assert not list(tmp_path.iterdir())


def test_the_page_of_what_is_off_has_every_row_whole() -> None:
    assert len(OFF) == HYDRA_PAGE.count("\n| ") - 2 >= 20  # header and line below it


@pytest.mark.parametrize(
    "text",
    [
        "suite=digits-cnn",
        "+model=vit",
        "~model",
        "model@x=vit",
        "seed=interval(1,2)",
        "--cfg hydra",
        "--multi",
        "model=[vit]",
    ],
)
def test_what_hydra_would_take_and_nobody_means_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        grid(text)
