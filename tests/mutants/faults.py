"""The faults that are put into a source file: one small change each, of the kinds that people
make.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

Edit = tuple[ast.AST, ast.AST | None]
FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
OPPOSITE: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
OTHER_CALL = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "sorted": "list",
    "abs": "float",
}


@dataclass(frozen=True)
class Fault:
    """`before` at `line` to `last` of `file` (a path below src/) becomes `after`: bytes `begin` to
    `end`. `function`: where it lies.
    """

    file: str
    function: str
    line: int
    last: int
    begin: int
    end: int
    before: str
    after: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line} {self.before!r} -> {self.after!r}"

    def planted(self, source: bytes) -> bytes:
        return source[: self.begin] + self.after.encode() + source[self.end :]


def faults_of(file: str, source: bytes) -> list[Fault]:
    """Every fault of the file that still compiles, in functions and in numbers that a module gives
    a name.
    """
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for function, node, new in _places(ast.parse(source)):
        begin = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        end = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        before = source[begin:end].decode()
        after = _text(node, new)
        fault = Fault(file, function, node.lineno, node.end_lineno, begin, end, before, after)  # type: ignore[attr-defined]
        try:
            compile(fault.planted(source), file, "exec")
        except (SyntaxError, ValueError):
            # in an f-string of older versions, a position that is none; a `continue` outside a loop
            continue
        if after != before:
            found.append(fault)
    return found


def _text(node: ast.AST, new: ast.AST | None) -> str:
    if new is None:
        return "pass"
    text = ast.unparse(new)
    return text if isinstance(node, ast.stmt | ast.comprehension) else f"({text})"


def _places(tree: ast.Module) -> Iterator[tuple[str, ast.AST, ast.AST | None]]:
    for statement in tree.body:
        match statement:
            case ast.FunctionDef() | ast.ClassDef():
                yield from _within(statement, statement.name)
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                for node, new in _edits_below(value):
                    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
                        yield "<module>", node, new


def _within(
    statement: ast.FunctionDef | ast.ClassDef, name: str
) -> Iterator[tuple[str, ast.AST, ast.AST | None]]:
    for part in statement.body:
        if isinstance(part, ast.FunctionDef | ast.ClassDef):
            yield from _within(part, f"{name}.{part.name}")
        elif isinstance(statement, ast.FunctionDef) and not _is_text(part):
            for node, new in _edits_below(part):
                yield name, node, new


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _edits_below(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Assert | ast.JoinedStr):
        return  # functions within are visited by name; a text says nothing that a verdict rests on
    yield from _edits(node)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _edits_below(child)


def _edits(node: ast.AST) -> Iterator[Edit]:
    match node:
        case ast.Compare():
            for place, operator in enumerate(node.ops):
                new = copy.deepcopy(node)
                new.ops[place] = FLIPPED[type(operator)]()
                yield node, new
        case ast.BoolOp():
            for place in range(len(node.values)):
                left = [value for at, value in enumerate(node.values) if at != place]
                yield node, left[0] if len(left) == 1 else ast.BoolOp(node.op, left)
            yield (
                node,
                ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values),
            )
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield node, operand
        case ast.IfExp():
            yield node, node.body
            yield node, node.orelse
        case ast.If():
            yield node.test, ast.Constant(False)
            yield node.test, ast.Constant(True)
        case ast.comprehension():
            for test in node.ifs:
                yield test, ast.Constant(True)
        case ast.BinOp() if type(node.op) in OPPOSITE:
            yield node, ast.BinOp(node.left, OPPOSITE[type(node.op)](), node.right)
        case ast.AugAssign():
            yield node, None
        case ast.Constant(value=bool() as value):
            yield node, ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield node, ast.Constant(value + 1)
        case ast.Constant(value=float() as value):
            yield node, ast.Constant(value * 2 or 1.0)
        case ast.Call():
            if isinstance(node.func, ast.Name) and node.func.id in OTHER_CALL:
                yield (
                    node,
                    ast.Call(
                        ast.Name(OTHER_CALL[node.func.id]),
                        node.args,
                        [] if node.func.id == "sorted" else node.keywords,
                    ),
                )
            for place in range(len(node.keywords)):
                yield (
                    node,
                    ast.Call(
                        node.func,
                        node.args,
                        [key for at, key in enumerate(node.keywords) if at != place],
                    ),
                )
        case (
            ast.Expr(value=ast.Call() | ast.Yield() | ast.YieldFrom()) | ast.Raise() | ast.Delete()
        ):
            yield node, None
        case ast.Continue():
            yield node, ast.Break()
            yield node, None
        case ast.Break():
            yield node, ast.Continue()
        case ast.List() | ast.Tuple() | ast.Set() if (
            isinstance(getattr(node, "ctx", ast.Load()), ast.Load) and len(node.elts) > 1
        ):
            for place in range(len(node.elts)):
                new = copy.deepcopy(node)
                del new.elts[place]
                yield node, new
        case ast.Slice():
            for part in ("lower", "upper"):
                if getattr(node, part) is not None:
                    new = copy.deepcopy(node)
                    setattr(new, part, None)
                    yield node, new
