"""One line that says what a checkpoint is, for the head of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptcheck.phrase import count, size

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint


def subject_of(ckpt: Checkpoint) -> str:
    """Return architecture, files, tensors, bytes, and the commit where it comes from a hub."""
    counts = ckpt.counts
    parts = [count(counts["files"], "file"), count(counts["tensors"], "tensor"), size(counts["bytes"])]
    if ckpt.config is not None and ckpt.config.architecture:
        parts.insert(0, ckpt.config.architecture)
    elif ckpt.is_adapter:
        parts.insert(0, "PEFT adapter")
    if commit := getattr(ckpt.source, "commit", None):
        parts.append(f"at {commit[:12]}")  # what a branch names today, it may not tomorrow
    return " · ".join(parts)
