"""Evaluates a shell's ``$((…))``: whole numbers, ``+ - * / %`` and brackets, nothing else."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

LARGEST = 10**15
"""Largest absolute value of a result or intermediate result."""
LONGEST = 300
"""Largest length of an expression, in characters."""


def _quotient(dividend: int, divisor: int) -> int:
    """Divide as a shell does, which rounds towards zero."""
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) == (divisor < 0) else -quotient


OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _quotient,
    ast.Mod: lambda dividend, divisor: dividend - divisor * _quotient(dividend, divisor),
}


def evaluate(expression: str, variables: Callable[[str], str | None]) -> int | None:
    """Return the value of an expression; None if it is not valid.

    variables: returns the text of a shell variable; None if unknown.

    >>> evaluate("(A + 1) * 1024 / 2", {"A": "3"}.get)
    2048
    >>> evaluate("A ** 9", {"A": "3"}.get), evaluate("1 / 0", {}.get), evaluate("B + 1", {}.get)
    (None, None, None)
    """
    if len(expression) > LONGEST:
        return None
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body, variables)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr, variables: Callable[[str], str | None]) -> int:
    """Return the value of a node of the syntax tree. Raises ValueError for any other expression."""
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
