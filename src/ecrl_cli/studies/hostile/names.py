"""Names of parts, tensors, checkpoints and pointers that escape the folder, collide, or are too long."""

from __future__ import annotations

from functools import partial

from ecrl_cli.checkpoint.format.canonical_json import canonical_json
from ecrl_cli.checkpoint.format.names import LATEST, LATEST_OK, MODEL
from ecrl_cli.studies.hostile.malicious_input import MaliciousInput
from ecrl_cli.studies.hostile.store_fixture import Scene

PARTS = {
    "absolute": "/etc/passwd",
    "one up": "../step_00000010/model.safetensors",
    "many up": "../" * 20 + "etc/passwd",
    "a NUL": "model\0.safetensors",
    "a newline": "model\n.safetensors",
    "300 letters": "m" * 300,
    "empty": "",
    "a dot": ".",
    "two dots": "..",
    "CON": "CON",
    "con": "con",
    "a trailing dot": "model.safetensors.",
    "a look-alike": "mоdel.safetensors",  # noqa: RUF001 - the second letter is Cyrillic: that is the attack
    "another case": "MODEL.safetensors",
    "a backslash": "..\\model.safetensors",
}
ODD_STEPS = (
    "step_-0000020",
    "step_1e3",
    "step_000000020",
    "step_20",
    "step_9223372036854775808",
    "step_00000030.zip",
    "step_٠٠٠٠٠٠٣٠",
    "step_00000030\n",
)
MANY = 100_000


def inputs() -> list[MaliciousInput]:
    found = [MaliciousInput("names of parts", name, "guard", ("manifest", "parts"), partial(_part, value)) for name, value in PARTS.items()]
    found.append(MaliciousInput("names of parts", "two that differ in case", "guard", ("manifest", "parts"), partial(_also, "Model.safetensors")))
    found.append(MaliciousInput("names of parts", "65 parts", "guard", ("manifest",), _many_parts))
    tensors = ("module.__class__", "__init__", "", "parameters." + "x" * 600, "parameters\0.weight")
    found += [MaliciousInput("names of tensors", repr(name[:24]), "guard", ("manifest", "schema"), partial(_tensor, name)) for name in tensors]
    found += [MaliciousInput("names of checkpoints", name, "newest", ("passed over",), partial(_odd, name)) for name in ODD_STEPS]
    found.append(MaliciousInput("names of checkpoints", "a hundred thousand", "newest", ("commit",), _crowd))
    for name, target in {"out": "../../outside", "to itself": LATEST_OK, "absolute": "/etc", "into the dark": "step_00000099"}.items():
        found.append(MaliciousInput("pointers", f"latest_ok leads {name}", "newest", ("passed over",), partial(_pointer, target)))
    found.append(MaliciousInput("pointers", "latest.json names /etc/passwd", "newest", ("passed over",), _latest))
    return found


def _part(name: str, scene: Scene) -> None:
    value = scene.manifest()
    value["parts"][name] = value["parts"].pop(MODEL)
    scene.put_manifest(canonical_json(value))


def _also(name: str, scene: Scene) -> None:
    value = scene.manifest()
    value["parts"][name] = value["parts"][MODEL]
    scene.put_manifest(canonical_json(value))


def _many_parts(scene: Scene) -> None:
    value = scene.manifest()
    value["parts"] |= {f"part{number}": value["parts"][MODEL] for number in range(62)}
    scene.put_manifest(canonical_json(value))


def _tensor(name: str, scene: Scene) -> None:
    value = scene.manifest()
    tensors = value["parts"][MODEL]["tensors"]
    tensors[name] = tensors.pop("parameters.weight")
    scene.put_manifest(canonical_json(value))


def _odd(name: str, scene: Scene) -> None:
    (scene.group.parent / name).mkdir()


def _crowd(scene: Scene) -> None:
    for number in range(1000, 1000 + MANY):
        (scene.group.parent / f"step_{number:08d}").mkdir()


def _pointer(target: str, scene: Scene) -> None:
    link = scene.group.parent / LATEST_OK
    link.unlink()
    link.symlink_to(target)


def _latest(scene: Scene) -> None:
    (scene.group.parent / LATEST).write_bytes(b'{"path":"/etc/passwd"}')
