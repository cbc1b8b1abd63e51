"""Compares the identities of two sets of weights."""

from __future__ import annotations

from ckptcheck.compare.identity import Identity


def list_differences(first: Identity, second: Identity) -> list[str]:
    """Return the names of the tensors in which two sets differ, those that one of them lacks included."""
    names = first.tensors.keys() | second.tensors.keys()
    return sorted(name for name in names if first.tensors.get(name) != second.tensors.get(name))
