"""What each process of a run imports when it starts: nothing heavy that it does not need. A restart
waits for all of it.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ecrl_cli.config.schema import DatasetConfig, ModelConfig, RunConfig
from ecrl_cli.supervision.launch.child_environment import child_environment
from ecrl_cli.supervision.launch.zygote import preload

FIGURES = {"pandas", "matplotlib", "seaborn", "scipy", "jinja2"}
HEAVY = FIGURES | {
    "torchvision",
    "sklearn",
    "sympy",
    "networkx",
    "PIL",
    "torch.distributed.checkpoint",
    "torch.onnx",
    "torch._inductor",
}
COMPOSING = {"hydra", "omegaconf", "antlr4"}
NETWORK = {"ssl", "http", "urllib.request", "xml", "asyncio"}
RECORDS = HEAVY | COMPOSING | NETWORK | {"torch", "multiprocessing", "unittest"}
WRITER = "ecrl_cli.supervision.launch.writer_main"
AGENT = "ecrl_cli.supervision.launch.torchrun_main"

ENTRIES = {
    "help": (("ecrl_cli.cli.main",), RECORDS | {"numpy", "yaml", "rich", "psutil", "blake3"}),
    "verify": (("ecrl_cli.cli.verify",), RECORDS | {"rich", "psutil"}),
    "report": (("ecrl_cli.cli.report",), RECORDS - {"jinja2"}),
    "supervisor": (("ecrl_cli.runs.run",), RECORDS | {"yaml"}),
    "writer": ((WRITER,), RECORDS | {"yaml", "rich", "psutil"}),
    "a rank before its Hello": (
        ("ecrl_cli.training.worker",),
        RECORDS | {"numpy", "yaml", "rich", "psutil"},
    ),
}
_TELL = """
import importlib, json, os, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps({"modules": sorted(sys.modules), "threads": len(os.listdir("/proc/self/task"))}))
"""


def imported(*modules: str) -> tuple[set[str], int]:
    """All modules that a process has when it has imported `modules`, and how many threads."""
    command = [sys.executable, "-c", _TELL, *modules]
    done = subprocess.run(
        command, env=child_environment(None, 1), stdout=subprocess.PIPE, text=True, check=True
    )
    told = json.loads(done.stdout)
    return set(told["modules"]), told["threads"]


@pytest.mark.parametrize("entry", ENTRIES)
def test_it_starts_without_what_it_does_not_need(entry: str) -> None:
    modules, refused = ENTRIES[entry]
    assert not refused & imported(*modules)[0]


def test_figures_are_drawn_without_scipys_statistics_which_stay_importable() -> None:
    """seaborn would import them, which takes longer than it and all the rest."""
    words = (
        "import sys; from ecrl_cli.report.figures.export import load_libraries as load; load();"
        " print('seaborn' in sys.modules, 'scipy.stats' in sys.modules); import scipy.stats"
    )
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_an_agent_that_forks_its_ranks_has_what_they_need_and_no_thread_of_its_own() -> None:
    """torch._dynamo brings sympy and more; DDP's constructor imports it, so it cannot be spared,
    and comes on top of what is looked at here.
    """
    config = RunConfig(dataset=DatasetConfig(name="digits"), model=ModelConfig(name="small_cnn"))
    needed = set(preload(config))
    assert "torch._dynamo" in needed
    modules, threads = imported(AGENT, *(needed - {"torch._dynamo"}))
    assert not (HEAVY | COMPOSING | {"rich", "psutil", "yaml"}) & modules
    assert threads == 1, "a fork has no other thread than the one that forks"


@pytest.mark.parametrize(
    ("model", "dataset", "vision"),
    [("small_cnn", "digits", False), ("resnet18", "digits", True), ("small_cnn", "fake", True)],
)
def test_torchvision_is_loaded_before_the_fork_where_the_model_or_the_data_set_needs_it(
    model: str, dataset: str, vision: bool
) -> None:
    config = RunConfig(dataset=DatasetConfig(name=dataset), model=ModelConfig(name=model))
    needing = {"ecrl_cli.models.resnet", "ecrl_cli.data.torchvision_sets"}
    assert bool(needing & set(preload(config))) == vision
