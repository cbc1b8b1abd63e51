"""What a config class demands of its settings together: expressions that fixtures/config_demands.py translates from its checks.

An expression is one of Python's, of settings, numbers and texts: ``mamba_d_head * mamba_n_heads != mamba_expand * hidden_size``.
The class refuses a config for which it is true. None is run: what is evaluated here is the little that the learned ones have.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv,
}
ORDERS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
FUNCTIONS: Mapping[str, Callable[[list[Any]], Any]] = {"len": len, "sum": sum, "min": min, "max": max}
"""What is asked of a list."""


class UnknownValueError(Exception):
    """A setting has no known value, or one that the expression is not made for."""


def is_refused(expression: str, value_of: Callable[[str], Any]) -> bool:
    """Whether an expression is true of a config; False where a setting in it is not known.

    value_of: returns the value of a setting by its path, or raises UnknownValueError.
    """
    try:
        return bool(_evaluate(_parse(expression), value_of))
    except (UnknownValueError, ArithmeticError, RecursionError):
        return False


def choose_branches(expression: str, value_of: Callable[[str], Any]) -> str:
    """Return an expression with what it is under the conditions that hold: ``a // 2`` of ``a // 2 if b else a`` where b is true.

    value_of: as `is_refused` has it.
    """

    class Chooser(ast.NodeTransformer):
        def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
            return self.visit(node.body if _evaluate(node.test, value_of) else node.orelse)  # type: ignore[no-any-return]

    try:
        return ast.unparse(Chooser().visit(ast.parse(expression, mode="eval")))
    except (UnknownValueError, ArithmeticError):
        return expression


@cache
def list_settings(expression: str) -> tuple[str, ...]:
    """Return the paths of the settings that an expression names, in its order."""
    found: dict[str, None] = {}

    def note(path: str) -> Any:
        found[path] = None
        raise UnknownValueError

    _visit(_parse(expression), note)
    return tuple(found)


@cache
def _parse(expression: str) -> ast.expr:
    return ast.parse(expression, mode="eval").body


def _visit(node: ast.AST, note: Callable[[str], Any]) -> None:
    """Call a function with the path of each setting in an expression."""
    if isinstance(node, (ast.Name, ast.Attribute)):
        try:
            note(ast.unparse(node))
        except UnknownValueError:
            return
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.Call) and child is node.func):
            _visit(child, note)


def _evaluate(node: ast.expr, value_of: Callable[[str], Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name() | ast.Attribute():
            return value_of(ast.unparse(node))
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return [_evaluate(part, value_of) for part in parts]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _evaluate(operand, value_of)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_to_number(_evaluate(operand, value_of))
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_evaluate(part, value_of) for part in parts)
        case ast.BoolOp(op=ast.Or(), values=parts):
            return any(_evaluate(part, value_of) for part in parts)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            one, other = (_to_number(_evaluate(part, value_of)) for part in (left, right))
            return ARITHMETIC[type(op)](one, other)
        case ast.Subscript(value=whole, slice=ast.Constant() | ast.UnaryOp() as place):
            listed, at = _evaluate(whole, value_of), _evaluate(place, value_of)
            if isinstance(listed, dict) and isinstance(at, str) and at in listed:
                return listed[at]
            if not isinstance(listed, list) or type(at) is not int or not -len(listed) <= at < len(listed):
                raise UnknownValueError
            return listed[at]
        case ast.IfExp(test=test, body=body, orelse=other):
            return _evaluate(body if _evaluate(test, value_of) else other, value_of)
        case ast.Call(func=ast.Name(id=name), args=[argument]) if name in FUNCTIONS:
            listed = _to_list(_evaluate(argument, value_of))
            if name != "len" and not (listed and all(map(_is_number, listed))):
                raise UnknownValueError
            return FUNCTIONS[name](listed)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            values = [_evaluate(part, value_of) for part in (left, *comparators)]
            return all(_compare(values[at], op, values[at + 1]) for at, op in enumerate(ops))
    raise UnknownValueError


def _compare(one: Any, op: ast.cmpop, other: Any) -> bool:
    """Compare as Python does; null, numbers, texts and lists only with their like."""
    match op:
        case ast.Is() | ast.IsNot():
            return (one is other) == isinstance(op, ast.Is)
        case ast.In() | ast.NotIn():
            if isinstance(one, (list, dict)) or one is None:
                raise UnknownValueError
            return (one in _to_list(other)) == isinstance(op, ast.In)
        case ast.Eq() | ast.NotEq():
            if not (_is_number(one) and _is_number(other)) and type(one) is not type(other):
                raise UnknownValueError
            return bool(one == other) == isinstance(op, ast.Eq)
    return ORDERS[type(op)](_to_number(one), _to_number(other))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _to_number(value: Any) -> Any:
    if not _is_number(value):
        raise UnknownValueError
    return value


def _to_list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise UnknownValueError
    return value
