"""The recipes for Kubernetes hold: operators know each field, and ECRL each key.

The names are those of the custom resource definitions of Kubeflow Trainer 2.3.0 and KubeRay 1.7.0.
An unknown field is refused or dropped by a cluster's API server, depending on how it is asked.
"""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import yaml

from ecrl_cli.supervision.launch.child_environment import child_environment
from tests.contract.test_docs_commands import ROOT, blocks, check_ecrl

PAGE = ROOT / "docs" / "kubernetes.md"
_POD = {
    "terminationGracePeriodSeconds": int,
    "volumes": [{"name": str, "persistentVolumeClaim": {"claimName": str}}],
    "containers": [{"name": str, "volumeMounts": [{"name": str, "mountPath": str}], "image": str}],
}
_RESOURCES = {"requests": {"cpu": str, "memory": str}, "limits": {"cpu": str, "memory": str}}
_RAY_POD = {
    "spec": _POD | {"containers": [{**_POD["containers"][0], "resources": _RESOURCES}]}  # type: ignore[index]
}
# What a recipe may hold: by name, a type, a list of one form, or names again.
FORMS: dict[str, dict[str, Any]] = {
    "trainer.kubeflow.org/v1alpha1 TrainJob": {
        "runtimeRef": {"apiGroup": str, "kind": str, "name": str},
        "trainer": {
            "image": str,
            "numNodes": int,
            "command": [str],
            "args": [str],
            "resourcesPerNode": _RESOURCES,
        },
        "runtimePatches": [
            {
                "manager": str,
                "trainingRuntimeSpec": {
                    "template": {
                        "spec": {
                            "replicatedJobs": [
                                {"name": str, "template": {"spec": {"template": {"spec": _POD}}}}
                            ]
                        }
                    }
                },
            }
        ],
    },
    "ray.io/v1 RayJob": {
        "entrypoint": str,
        "shutdownAfterJobFinishes": bool,
        "backoffLimit": int,
        "rayClusterSpec": {
            "rayVersion": str,
            "headGroupSpec": {"rayStartParams": {"num-cpus": str}, "template": _RAY_POD},
            "workerGroupSpecs": [
                {
                    "groupName": str,
                    "replicas": int,
                    "minReplicas": int,
                    "maxReplicas": int,
                    "rayStartParams": {"num-cpus": str},
                    "template": _RAY_POD,
                }
            ],
        },
    },
}


def recipes() -> list[dict[str, Any]]:
    """The documents of the page, in its order."""
    return [yaml.safe_load(body) for _, language, body in blocks(PAGE) if language == "yaml"]


def strange(value: Any, form: Any, place: str) -> list[str]:
    """Where `value` is not of `form`."""
    if isinstance(form, dict):
        if not isinstance(value, dict):
            return [f"{place} is not a mapping"]
        unknown = [f"{place}.{name} is unknown" for name in value if name not in form]
        parts = [(value[name], form[name], f"{place}.{name}") for name in value if name in form]
        return unknown + [line for part in parts for line in strange(*part)]
    if isinstance(form, list):
        if not isinstance(value, list):
            return [f"{place} is not a list"]
        return [line for each in value for line in strange(each, form[0], f"{place}[]")]
    return [] if type(value) is form else [f"{place} is {value!r}, not of {form.__name__}"]


def command_of(recipe: dict[str, Any]) -> list[str]:
    """The words of the recipe's `ecrl`."""
    spec = recipe["spec"]
    words = shlex.split(spec.get("entrypoint", ""))
    if "trainer" in spec:
        words = [*spec["trainer"]["command"], *spec["trainer"]["args"]]
        if words[:2] == ["sh", "-c"]:
            words = shlex.split(words[2].partition(";")[0])
    return words[words.index("ecrl") + 1 :]


@pytest.mark.parametrize(
    "recipe", recipes(), ids=lambda recipe: f"{recipe['kind']}-{recipe['metadata']['name']}"
)
def test_a_recipe_holds_what_its_operator_and_ecrl_know(recipe: dict[str, Any]) -> None:
    kind = f"{recipe['apiVersion']} {recipe['kind']}"
    assert recipe.keys() == {"apiVersion", "kind", "metadata", "spec"}
    assert not strange(recipe["spec"], FORMS[kind], "spec")
    words = command_of(recipe)
    if "--junit" in words:
        del words[words.index("--junit") : words.index("--junit") + 2]
    check_ecrl(words)
    assert [word for word in words if word.startswith("run_dir=/runs/")], "on the volume"
    if words[0] == "audit":
        assert "{dir}" in words


def test_a_sweep_and_an_audit_for_each_operator() -> None:
    assert [(recipe["kind"], recipe["metadata"]["name"]) for recipe in recipes()] == [
        (kind, name) for kind in ("TrainJob", "RayJob") for name in ("ecrl-sweep", "ecrl-audit")
    ]


def test_what_trainer_sets_for_torchrun_does_not_reach_the_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PET_NNODES", "2")
    monkeypatch.setenv("PET_MASTER_ADDR", "elsewhere")
    assert not [name for name in child_environment(None, 1) if name.startswith("PET_")]
