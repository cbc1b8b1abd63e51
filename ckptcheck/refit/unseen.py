"""What a trial could not see: tensors that were not marked before the first sync, and causes that were not looked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptcheck.phrase import count, few
from ckptcheck.report import Section

if TYPE_CHECKING:
    from ckptcheck.refit.trace import Key, RefitTrace


def unmarked(trace: RefitTrace) -> str:
    """Say why marks show nothing of a parameter that was to get some; "" where they show what the first sync writes."""
    named = sorted(key for key in trace.scrambled.names if key in trace.cold and trace.cold[key].kind == "parameter")
    if not named:
        why = next(iter(trace.scrambled.left.values()), "the engine names none")
        return f"no parameter could be overwritten with marks before the first sync: {why}"
    kept = sorted({key[1] for key in named if _same(trace, key)})
    if not kept:
        return ""
    they = "it" if len(kept) == 1 else "they"
    return f"{count(len(kept), 'parameter')} held after overwriting what {they} held before: {few(kept)}"


def meddled(trace: RefitTrace) -> set[Key]:
    """Return the buffers that changed when parameters were overwritten: no sync has done that."""
    return {
        key
        for key, entry in trace.cold.items()
        if entry.kind == "buffer" and (marked := trace.marked.get(key)) is not None and marked.digest != entry.digest
    }


def unseen(trace: RefitTrace) -> Iterator[Section]:
    """Yield tables of what was left as it was, by reason, and lines about causes; nothing where there is nothing to tell."""
    reasons: dict[str, dict[str, None]] = {}
    for (_, name), why in trace.scrambled.left.items():
        reasons.setdefault(why, {})[name] = None
    if reasons:
        yield Section(
            "not overwritten before the first sync: that a sync writes these shows only in the comparison with a cold load",
            ("why", "tensors", "which"),
            tuple((why, len(names), few(list(names))) for why, names in reasons.items()),
        )
    if lines := tuple(f"sync {sync.number}: {sync.unexplained}" for sync in trace.syncs if sync.unexplained):
        yield Section("causes that were not looked for", lines=lines)


def _same(trace: RefitTrace, key: Key) -> bool:
    cold, marked = trace.cold[key], trace.marked.get(key)
    return marked is not None and bool(cold.digest) and marked.digest == cold.digest
