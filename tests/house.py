"""Figures of the house, to compare one checkout with another: `python -m tests.house [CHECKOUT]`.

Lines are counted at a width of 100 columns, whatever width a checkout was formatted to; a longer
line counts once per 100 columns begun. A binding is a name that an assignment, a loop, a `with`, an
`except` or a parameter gives to something. Import circles include imports for types alone.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parent.parent
WIDTH = 100
# Names that say nothing about the thing: a reader has to look up what was found or said.
VAGUE = "due each found given here known made one other others said seen there thing told".split()


@dataclass(frozen=True)
class House:
    """The source and tests of the checkout `root`."""

    root: Path = ROOT

    def lines(self, folder: str) -> int:
        """Lines of the Python files below `folder`, as wide as WIDTH."""
        return sum(
            max(1, -(-len(line) // WIDTH))
            for path in (self.root / folder).rglob("*.py")
            for line in path.read_text(encoding="utf-8").splitlines()
        )

    @cached_property
    def modules(self) -> dict[str, ast.Module]:
        """The modules of src by dotted name."""
        source = self.root / "src"
        return {
            ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(
                ".__init__"
            ): ast.parse(path.read_text(encoding="utf-8"))
            for path in sorted(source.rglob("*.py"))
        }

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return [node for tree in self.modules.values() for node in ast.walk(tree)]

    @cached_property
    def classes(self) -> Counter[str]:
        """By name of a class, how many definitions it has in src."""
        return Counter(node.name for node in self.nodes if isinstance(node, ast.ClassDef))

    @property
    def shared_class_names(self) -> list[str]:
        """The names that several classes of src have."""
        return sorted(name for name, count in self.classes.items() if count > 1)

    @property
    def vague_share(self) -> float:
        """The share of VAGUE among the bindings of src."""
        names = Counter(name for node in self.nodes if (name := bound(node)))
        return sum(names[name] for name in VAGUE) / names.total()

    @property
    def in_circles(self) -> list[str]:
        """The modules of src that import each other in a circle, and those between two circles."""
        imports = {name: self._imports(name, tree) for name, tree in self.modules.items()}
        while True:
            imported = set[str]().union(*imports.values())
            left = {
                name: needs & imports.keys()
                for name, needs in imports.items()
                if name in imported and needs & imports.keys()
            }
            if left == imports:
                return sorted(left)
            imports = left

    def _imports(self, name: str, tree: ast.Module) -> set[str]:
        """The modules of src that one imports, but for the packages that it lies in."""
        return {
            imported
            for imported in imported_names(tree)
            if imported in self.modules and not f"{name}.".startswith(f"{imported}.")
        }


def bound(node: ast.AST) -> str:
    """The name that `node` binds; else empty."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            return name
        case ast.ExceptHandler(name=str(name)):
            return name
    return ""


def imported_names(tree: ast.AST) -> Iterator[str]:
    """Dotted names of modules, and of what is taken from them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def table(house: House) -> str:
    """Markdown: a row per figure."""
    rows = {
        "lines of source": f"{house.lines('src'):,}",
        "lines of tests": f"{house.lines('tests'):,}",
        "class names with several definitions": str(len(house.shared_class_names)),
        "vague bindings": f"{house.vague_share:.1%}",
        "modules in import circles": str(len(house.in_circles)),
    }
    return "\n".join(["| | |", "| --- | ---: |", *(f"| {n} | {v} |" for n, v in rows.items())])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.house", description=__doc__)
    parser.add_argument("checkout", nargs="?", type=Path, default=ROOT)
    sys.stdout.write(table(House(parser.parse_args().checkout)) + "\n")


if __name__ == "__main__":
    main()
