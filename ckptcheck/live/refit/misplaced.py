"""Finds tensors of an engine that hold the values of another tensor: two norms exchanged, a head that is the embedding."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ckptcheck.live.refit.trace import Key, Sync
from ckptcheck.text.formatting import join_truncated


def find_misplaced(sync: Sync, keys: Collection[Key]) -> dict[Key, str]:
    """Return those of these tensors that hold exactly what a cold load holds in one other tensor of the rank, with its name.

    Where several hold the same (norms of ones), nothing is found: a digest says nothing then.
    """
    held: dict[tuple[int, str], set[str]] = {}
    for (rank, name), entry in sync.reference.items():
        if entry.digest and entry.kind == "parameter":
            held.setdefault((rank, entry.digest), set()).add(name)
    found: dict[Key, str] = {}
    for rank, name in keys:
        others = held.get((rank, sync.manifest[rank, name].digest), set()) - {name}
        if len(others) == 1:
            found[rank, name] = next(iter(others))
    return found


def describe_misplaced(found: Mapping[Key, str]) -> str:
    """Describe them, each once."""
    others = {name: other for (_, name), other in found.items()}
    return join_truncated([f"{name} holds the values of {other}" for name, other in sorted(others.items())])
