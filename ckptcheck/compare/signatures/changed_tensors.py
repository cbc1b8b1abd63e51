"""Names the tensors of a file that changed since a manifest was written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.compare.verification import Verification
from ckptcheck.text.formatting import count, format_shape, join_truncated, natural_sort_key

CLAUSES: Mapping[str, tuple[str, str, str] | None] = {
    "rewritten": ("tensor has", "tensors have", "other values"),
    "reformed": ("tensor has", "tensors have", "another dtype or shape"),
    "exchanged": None,
    "renamed": None,
    "gone": ("tensor is", "tensors are", "gone"),
    "unread": ("tensor is", "tensors are", "not whole"),
    "moved": ("tensor is", "tensors are", "in another file, unchanged"),
    "new": ("tensor was", "tensors were", "not signed"),
}
"""Kind of change, in the order of a sentence → how a clause counts its tensors; None: each has its own clause."""
REORDERED = "reordered"
"""Unchanged, but at another offset in the file; reported only if nothing else changed."""


@dataclass(frozen=True)
class TensorChanges:
    """The tensors of a file that changed since somebody signed it."""

    number: int
    """Tensors that the signature covers in this file."""
    found: Mapping[str, Mapping[str, str]]
    """Kind of change → tensor → how a sentence names it."""

    @property
    def names(self) -> tuple[str, ...]:
        """All tensors with a change."""
        return tuple(dict.fromkeys(name for named in self.found.values() for name in named))

    @property
    def text(self) -> str:
        """The changes in clauses; "" if no tensor of the file is known."""
        clauses = []
        for kind, words in CLAUSES.items():
            if named := self.found.get(kind):
                listed = join_truncated(list(named.values()))
                clauses.append(listed if words is None else f"{count(len(named), *words[:2])} {words[2]}: {listed}")
        if not clauses and (moved := self.found.get(REORDERED)):
            clauses.append(
                f"its tensors have other places, and the values that were signed: {join_truncated(list(moved))}"
            )
        if not clauses and self.number:
            held = count(self.number, "tensor has", "tensors have")
            clauses.append(f"{held} the values that were signed: only its header differs")
        return "; ".join(clauses)


def find_changes(verification: Verification, file: str) -> TensorChanges:
    """Return the changes of the tensors of one file."""
    listed, current = verification.manifest.tensors, verification.current
    # The place of a tensor in a manifest is its file, or a folder that the file lies in.
    signed_here = [
        name for name, entry in listed.items() if entry.file in (file, ".") or file.startswith(entry.file + "/")
    ]
    holders: dict[tuple[str, tuple[int, ...], str], list[str]] = {}
    for name, entry in listed.items():
        holders.setdefault(entry.content, []).append(name)
    found: dict[str, dict[str, str]] = {}
    for name in sorted(signed_here, key=natural_sort_key):
        for kind, shown in _compare_tensor(verification, name, holders):
            found.setdefault(kind, {})[name] = shown
    new_names = set(verification.renamed.values())
    for name in sorted(current, key=natural_sort_key):
        if current[name].file == file and name not in listed and name not in new_names:
            found.setdefault("new", {})[name] = name
    return TensorChanges(len(signed_here), found)


def _compare_tensor(
    verification: Verification, name: str, holders: Mapping[tuple[str, tuple[int, ...], str], list[str]]
) -> Iterator[tuple[str, str]]:
    """Yield the kind of change of a signed tensor, and how a sentence names it; nothing for an unchanged tensor."""
    old, now = verification.manifest.tensors[name], verification.current.get(name)
    if name in verification.renamed:
        yield "renamed", f"{name} is called {verification.renamed[name]}"
    elif name in verification.unreadable:
        yield "unread", name
    elif now is None:
        yield "gone", name
    elif now.content == old.content:
        if now.file != old.file:
            yield "moved", name
        elif old.offset is not None and _find_offset(verification, name) != old.offset:
            yield REORDERED, name
    elif (now.dtype, now.shape) != (old.dtype, old.shape):
        forms = " → ".join(f"{each.dtype} {format_shape(each.shape)}" for each in (old, now))
        yield "reformed", f"{name} ({forms})"
    elif len(owners := holders.get(now.content, [])) == 1:
        # Norms of ones are alike: a value names its source only if exactly one tensor had it.
        yield "exchanged", f"{name} holds what {owners[0]} held"
    else:
        yield "rewritten", name


def _find_offset(verification: Verification, name: str) -> int | None:
    ckpt = verification.ckpt
    return ckpt.tensors[name].data_offsets[0] if isinstance(ckpt, Checkpoint) else None
