"""Computes what stands in a shell's ``$((…))``: whole numbers, ``+ - * / %`` and brackets, nothing else."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

LARGEST = 10**15
LONGEST = 300
"""Characters of an expression."""


def _quotient(one: int, other: int) -> int:
    """Division as in a shell: towards zero."""
    whole = abs(one) // abs(other)
    return whole if (one < 0) == (other < 0) else -whole


OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _quotient,
    ast.Mod: lambda one, other: one - other * _quotient(one, other),
}


def compute(expression: str, variables: Callable[[str], str | None]) -> int | None:
    """Return the value, None where it is not such an expression. variables: name → text, None where it is not known.

    >>> compute("(A + 1) * 1024 / 2", {"A": "3"}.get)
    2048
    >>> compute("A ** 9", {"A": "3"}.get), compute("1 / 0", {}.get), compute("B + 1", {}.get)
    (None, None, None)
    """
    if len(expression) > LONGEST:
        return None
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body, variables)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr, variables: Callable[[str], str | None]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        value = node.value
    elif isinstance(node, ast.Name):
        value = int(variables(node.id) or "")
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _value(node.operand, variables)
        value = -value if isinstance(node.op, ast.USub) else value
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        value = OPERATIONS[type(node.op)](_value(node.left, variables), _value(node.right, variables))
    else:
        raise ValueError
    if abs(value) > LARGEST:
        raise ValueError
    return value
