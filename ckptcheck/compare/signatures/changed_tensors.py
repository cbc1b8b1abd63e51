"""Names what changed in a file of weights since a manifest was written, by tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import dataclass

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.compare.verification import Verification
from ckptcheck.text.formatting import count, format_shape, join_truncated, natural_sort_key


@dataclass(frozen=True)
class TensorChanges:
    """The tensors that were in a file when it was signed, or are there now, by what became of them."""

    rewritten: tuple[str, ...] = ()
    """Other values."""
    reformed: Mapping[str, str] | None = None
    """Tensor → its dtype and shape, as they were and as they are."""
    exchanged: Mapping[str, str] | None = None
    """Tensor → the tensor whose values it holds now."""
    gone: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    """Unchanged, in another file."""
    new: tuple[str, ...] = ()
    """Not signed under any name."""
    renamed: Mapping[str, str] | None = None
    reordered: tuple[str, ...] = ()
    """Unchanged, and at another place in the file."""
    unread: tuple[str, ...] = ()
    number: int = 0
    """Tensors that were signed in this file."""

    @property
    def names(self) -> tuple[str, ...]:
        """All tensors that something became of."""
        of_maps = (*(self.reformed or {}), *(self.exchanged or {}), *(self.renamed or {}))
        listed = (*self.rewritten, *of_maps, *self.gone, *self.unread, *self.new, *self.moved, *self.reordered)
        return tuple(dict.fromkeys(listed))

    def describe(self) -> str:
        """Say it in clauses; "" where no tensor of the file is known."""
        clauses = []
        if self.rewritten:
            clauses.append(f"{_have(self.rewritten)} other values: {join_truncated(self.rewritten)}")
        if self.reformed:
            forms = [f"{name} ({change})" for name, change in self.reformed.items()]
            clauses.append(f"{_have(forms)} another dtype or shape: {join_truncated(forms)}")
        if self.exchanged:
            pairs = [f"{name} holds what {other} held" for name, other in self.exchanged.items()]
            clauses.append(join_truncated(pairs))
        if self.renamed:
            clauses.append(join_truncated([f"{old} is called {new}" for old, new in self.renamed.items()]))
        if self.gone:
            clauses.append(f"{_are(self.gone)} gone: {join_truncated(self.gone)}")
        if self.unread:
            clauses.append(f"{_are(self.unread)} not whole: {join_truncated(self.unread)}")
        if self.moved:
            clauses.append(f"{_are(self.moved)} in another file, unchanged: {join_truncated(self.moved)}")
        if self.new:
            clauses.append(f"{_were(self.new)} not signed: {join_truncated(self.new)}")
        if self.reordered and not clauses:
            clauses.append(
                f"its tensors have other places, and the values that were signed: {join_truncated(self.reordered)}"
            )
        if not clauses and self.number:
            clauses.append(f"{_have(range(self.number))} the values that were signed: only its header differs")
        return "; ".join(clauses)


def find_changes(verification: Verification, file: str) -> TensorChanges:
    """Return what became of the tensors of one file."""
    listed, current = verification.manifest.tensors, verification.current
    signed_here = [name for name, entry in listed.items() if _is_in(file, entry.file)]
    holders: dict[tuple[str, tuple[int, ...], str], list[str]] = {}
    for name, entry in listed.items():
        holders.setdefault(entry.content, []).append(name)
    renamed = {old: new for old, new in verification.renamed.items() if old in signed_here}
    new_names = set(verification.renamed.values())
    rewritten, gone, moved, reordered, unread = [], [], [], [], []
    reformed, exchanged = {}, {}
    for name in sorted(signed_here, key=natural_sort_key):
        old, now = listed[name], current.get(name)
        if name in verification.unreadable:
            unread.append(name)
        elif now is None:
            if name not in renamed:
                gone.append(name)
        elif now.content != old.content:
            # norms of ones are alike: only a value that one tensor had says where it came from
            owners = holders.get(now.content, [])
            if (now.dtype, now.shape) != (old.dtype, old.shape):
                reformed[name] = " → ".join(f"{each.dtype} {format_shape(each.shape)}" for each in (old, now))
            elif len(owners) == 1:
                exchanged[name] = owners[0]
            else:
                rewritten.append(name)
        elif now.file != old.file:
            moved.append(name)
        elif old.offset is not None and _find_offset(verification, name) != old.offset:
            reordered.append(name)
    new = [
        name for name, entry in current.items() if entry.file == file and name not in listed and name not in new_names
    ]
    return TensorChanges(
        tuple(rewritten), reformed, exchanged, tuple(gone), tuple(moved), tuple(sorted(new, key=natural_sort_key)), renamed,
        tuple(reordered), tuple(unread), len(signed_here),
    )  # fmt: skip


def _is_in(file: str, place: str) -> bool:
    """Whether a manifest's place of a tensor is this file, or a folder that it lies in."""
    return place in (file, ".") or file.startswith(place + "/")


def _find_offset(verification: Verification, name: str) -> int | None:
    ckpt = verification.ckpt
    return ckpt.tensors[name].data_offsets[0] if isinstance(ckpt, Checkpoint) else None


def _have(names: Sized) -> str:
    return count(len(names), "tensor has", "tensors have")


def _are(names: Sized) -> str:
    return count(len(names), "tensor is", "tensors are")


def _were(names: Sized) -> str:
    return count(len(names), "tensor was", "tensors were")
