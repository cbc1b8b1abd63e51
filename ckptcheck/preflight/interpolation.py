"""Resolves OmegaConf's interpolations that refer to other keys or to the environment.

For an interpolation that a custom resolver computes (``${mul:2,3}``), the result states the reason why it is not resolved.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from ckptcheck.checkpoint.document import clip
from ckptcheck.preflight.document import Document, Leaf
from ckptcheck.preflight.yaml_file import parse_scalar

WHOLE = re.compile(r"\$\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}")
"""One interpolation, which may contain ``{}`` or one more interpolation."""
DEEPEST = 30
"""How many references may follow one another before the chain counts as one that refers to itself."""


@dataclass(frozen=True)
class ResolvedValue:
    """The value of a key after its interpolations are resolved."""

    value: object
    """The value; None where `reason` is not empty."""
    leaf: Leaf
    """The leaf that writes the key."""
    reason: str = ""
    """Why the value cannot be resolved; "" where it is resolved."""


def resolve(document: Document, path: str) -> ResolvedValue | None:
    """Return the resolved value of a key, or None where the document does not have the key."""
    return _resolve_path(document, path, 0)


def _resolve_path(document: Document, path: str, depth: int) -> ResolvedValue | None:
    leaf = document.leaves.get(path)
    if leaf is None:
        return _resolve_below_reference(document, path, depth)
    if leaf.reason:
        return ResolvedValue(None, leaf, leaf.reason)
    value, reason = _resolve(document, path, leaf.value, depth)
    return ResolvedValue(value, leaf, reason)


def _resolve_below_reference(document: Document, path: str, depth: int) -> ResolvedValue | None:
    """Resolve a key below a section that refers to another section: after ``ref: ${actor}``, ref.lr is actor.lr."""
    parts = path.split(".")
    for length in range(len(parts) - 1, 0, -1):
        section = ".".join(parts[:length])
        leaf = document.leaves.get(section)
        if leaf is None:
            continue
        match = WHOLE.fullmatch(leaf.value) if isinstance(leaf.value, str) else None
        if match is None or depth > DEEPEST:
            return None
        target = _target_path(match[1], section)
        return None if target is None else _resolve_path(document, ".".join([target, *parts[length:]]), depth + 1)
    return None


def _target_path(expression: str, path: str) -> str | None:
    """Return the absolute path that an interpolation refers to, or None where it is not a reference.

    Args:
        expression: The text between ``${`` and ``}``.
        path: The path of the key whose value holds the interpolation; leading dots are relative to it.
    """
    expression = expression.strip()
    if expression.startswith("oc.select:"):
        expression = expression.removeprefix("oc.select:").partition(",")[0].strip()
    if ":" in expression or "$" in expression or not expression:
        return None
    dots = len(expression) - len(expression.lstrip("."))
    if not dots:
        return expression
    parts = path.split(".")
    if dots > len(parts):
        return None
    return ".".join([*parts[: len(parts) - dots], expression[dots:]])


def _resolve(document: Document, path: str, value: object, depth: int) -> tuple[object, str]:
    """Resolve all interpolations in a value. Returns (value, reason why it cannot be resolved or "")."""
    if not isinstance(value, str):
        return value, ""
    if value == "???":
        return None, "the job requires a value (???), and none is given"
    if "${" not in value:
        return value, ""
    if depth > DEEPEST:
        return None, f"{clip(value, 60)} refers to itself"
    if whole := WHOLE.fullmatch(value):
        return _resolve_interpolation(document, path, whole[1], depth)
    reasons: list[str] = []

    def insert(match: re.Match[str]) -> str:
        resolved, reason = _resolve_interpolation(document, path, match[1], depth)
        if reason:
            reasons.append(reason)
        return str(resolved)

    text = WHOLE.sub(insert, value)
    if reasons:
        return None, reasons[0]
    return (text, "") if "${" not in text else (None, f"{clip(value, 60)} is no interpolation that is understood")


def _resolve_interpolation(document: Document, path: str, expression: str, depth: int) -> tuple[object, str]:
    """Resolve one interpolation. Returns (value, reason why it cannot be resolved or "").

    expression: the text between ``${`` and ``}``.
    """
    name, colon, rest = expression.partition(":")
    if colon and name in ("oc.env", "oc.select"):
        target, comma, default = (part.strip() for part in rest.partition(","))
        if name == "oc.env":
            exported = document.environment.get(target)
            if exported is not None and not exported.reason:
                return parse_scalar(str(exported.value)), ""
            if target in os.environ:
                return parse_scalar(os.environ[target]), ""
            if exported is not None:
                return None, f"{target}: {exported.reason}"
            missing = f"the environment variable {clip(target, 60)} is not set here"
        else:
            selected = _resolve_path(document, _target_path(target, path) or target, depth + 1)
            if selected is not None:
                return selected.value, selected.reason
            missing = ""
        if comma:
            return _resolve(document, path, parse_scalar(default), depth + 1)
        return None, missing
    if colon or "$" in expression:
        return None, f"${{{clip(expression, 60)}}} is computed by the job itself"
    target_path = _target_path(expression, path)
    resolved = _resolve_path(document, target_path, depth + 1) if target_path else None
    if resolved is None:
        if target_path and document.has(target_path):
            return {}, ""
        return None, f"${{{clip(expression, 60)}}} refers to a key that does not exist"
    return resolved.value, resolved.reason
