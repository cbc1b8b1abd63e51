"""What each consumer makes of a quantized checkpoint, a row for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptcheck.dialects.views import clashes, refusals, repacked, views
from ckptcheck.phrase import count

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint


def rows(ckpt: Checkpoint) -> list[dict[str, str | int | None]]:
    """Return a row per chosen consumer: consumer, version, files, quantized, plain, agrees.

    files: how many it loads, None for a trainer that loads another checkpoint. quantized, plain: modules that it builds
    so. agrees: "yes", or what becomes of those that are stored otherwise.
    """
    stops: dict[str, int] = {}
    for who, _, number in refusals(ckpt):
        stops[who] = stops.get(who, 0) + number
    lost = {who: sum(clash.who == who for clash in clashes(ckpt, quantized=True)) for who in _names(ckpt)}
    bare = {who: sum(clash.who == who for clash in clashes(ckpt, quantized=False)) for who in _names(ckpt)}
    found: list[dict[str, str | int | None]] = []
    for consumer, view in views(ckpt).items():
        who = f"{consumer} {view.version}"
        verdicts = [verdict.quantized for _, verdict in view.verdicts.values()]
        if view.error is not None:
            agrees = f"refuses it: {view.error}"
        elif view.reason is not None:
            agrees = f"unknown: {view.reason}"
        elif consumer == "slime":
            agrees = _against_engines(ckpt)
        elif not any(verdicts):
            agrees = "builds nothing quantized: it does not know the method"
        else:
            parts = [
                f"stops at {count(stops[who], 'module')}" if who in stops else "",
                f"builds {count(lost[who], 'quantized module')} plain" if lost[who] else "",
                f"builds {count(bare[who], 'plain module')} quantized" if bare[who] else "",
            ]
            agrees = ", ".join(part for part in parts if part) or "yes"
        if view.guessed and view.verdicts:
            agrees += " (nobody has built this architecture with it: by the usual names)"
        found.append({
            "consumer": consumer, "version": view.version, "files": _files(ckpt, consumer),
            "quantized": sum(verdict is True for verdict in verdicts),
            "plain": sum(verdict is False for verdict in verdicts), "agrees": agrees,
        })  # fmt: skip
    return found


def _names(ckpt: Checkpoint) -> list[str]:
    return [f"{consumer} {view.version}" for consumer, view in views(ckpt).items()]


def _files(ckpt: Checkpoint, consumer: str) -> int | None:
    """Count the files of weights that a consumer reads: the engines glob, transformers follows the index."""
    if consumer in ("vllm", "sglang"):
        return len(ckpt.globbed)
    return len(ckpt.loaded) if consumer == "transformers" else None


def _against_engines(ckpt: Checkpoint) -> str:
    modules = {sent.module for sent, _ in repacked(ckpt)}
    return f"packs {count(len(modules), 'module')} otherwise than an engine builds" if modules else "yes"
