"""Resolves OmegaConf's interpolations as far as they are references; what a resolver would have to compute is named."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from ckptcheck.checkpoint.document import clipped
from ckptcheck.preflight.document import Document, Leaf
from ckptcheck.preflight.yaml_file import scalar

WHOLE = re.compile(r"\$\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}")
"""One interpolation, which may hold ``{}`` or one more interpolation."""
DEEPEST = 30


@dataclass(frozen=True)
class Found:
    """What a key comes to. leaf: where it was written. reason: why it cannot be told, "" where it can."""

    value: object
    leaf: Leaf
    reason: str = ""


def look(document: Document, path: str) -> Found | None:
    """Return what a key comes to, or None where it is not written."""
    return _look(document, path, 0)


def _look(document: Document, path: str, depth: int) -> Found | None:
    leaf = document.leaves.get(path)
    if leaf is None:
        return _through_section(document, path, depth)
    if leaf.reason:
        return Found(None, leaf, leaf.reason)
    value, reason = _resolve(document, path, leaf.value, depth)
    return Found(value, leaf, reason)


def _through_section(document: Document, path: str, depth: int) -> Found | None:
    """A key below a section that is a reference to another one: ``ref: ${actor}`` has what actor has."""
    parts = path.split(".")
    for number in range(len(parts) - 1, 0, -1):
        above = ".".join(parts[:number])
        leaf = document.leaves.get(above)
        if leaf is None:
            continue
        found = WHOLE.fullmatch(leaf.value) if isinstance(leaf.value, str) else None
        if found is None or depth > DEEPEST:
            return None
        goal = _goal(found[1], above)
        return None if goal is None else _look(document, ".".join([goal, *parts[number:]]), depth + 1)
    return None


def _goal(inside: str, path: str) -> str | None:
    """The absolute path that a reference means, None where it is no reference."""
    inside = inside.strip()
    if inside.startswith("oc.select:"):
        inside = inside.removeprefix("oc.select:").partition(",")[0].strip()
    if ":" in inside or "$" in inside or not inside:
        return None
    dots = len(inside) - len(inside.lstrip("."))
    if not dots:
        return inside
    parts = path.split(".")
    if dots > len(parts):
        return None
    return ".".join([*parts[: len(parts) - dots], inside[dots:]])


def _resolve(document: Document, path: str, value: object, depth: int) -> tuple[object, str]:
    if not isinstance(value, str):
        return value, ""
    if value == "???":
        return None, "it has to be given (???), and is not"
    if "${" not in value:
        return value, ""
    if depth > DEEPEST:
        return None, f"{clipped(value, 60)} refers to itself"
    if whole := WHOLE.fullmatch(value):
        return _one(document, path, whole[1], depth)
    reasons: list[str] = []

    def insert(match: re.Match[str]) -> str:
        inner, reason = _one(document, path, match[1], depth)
        if reason:
            reasons.append(reason)
        return str(inner)

    text = WHOLE.sub(insert, value)
    if reasons:
        return None, reasons[0]
    return (text, "") if "${" not in text else (None, f"{clipped(value, 60)} is no interpolation that is understood")


def _one(document: Document, path: str, inside: str, depth: int) -> tuple[object, str]:
    """Resolve what stands in ``${…}``."""
    name, colon, rest = inside.partition(":")
    if colon and name in ("oc.env", "oc.select"):
        goal, comma, default = (part.strip() for part in rest.partition(","))
        if name == "oc.env":
            known = document.environment.get(goal)
            if known is not None and not known.reason:
                return scalar(str(known.value)), ""
            if goal in os.environ:
                return scalar(os.environ[goal]), ""
            if known is not None:
                return None, f"{goal}: {known.reason}"
            missing = f"the environment variable {clipped(goal, 60)} is not set here"
        else:
            found = _look(document, _goal(goal, path) or goal, depth + 1)
            if found is not None:
                return found.value, found.reason
            missing = ""
        if comma:
            return _resolve(document, path, scalar(default), depth + 1)
        return None, missing
    if colon or "$" in inside:
        return None, f"${{{clipped(inside, 60)}}} is computed by the job itself"
    goal_path = _goal(inside, path)
    found = _look(document, goal_path, depth + 1) if goal_path else None
    if found is None:
        if goal_path and document.has(goal_path):
            return {}, ""
        return None, f"${{{clipped(inside, 60)}}} refers to what is not there"
    return found.value, found.reason
