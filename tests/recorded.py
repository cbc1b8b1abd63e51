"""The records of the history rules' cases: a tiny model, synced once for every table of ``syncs``.

``step``, ``version``, ``loss``, ``ok``, ``message`` and ``run`` are the record's own. What is sent is another number in every
tensor at every sync, except for ``same`` (patterns of names that are sent as at the sync before) and ``like`` (the sync from
which all, or the names in ``of``, are sent again). ``stale`` are patterns of the engine's tensors that stay as they were,
``garbled`` those that come out as something else,
``lack`` patterns of names that are not sent, ``extra`` names that are. ``held = false``: nobody asked the engine.
"""

from __future__ import annotations

import hashlib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ckptcheck.dialects.made import parts
from ckptcheck.history.history import History, open_history
from ckptcheck.history.record import Record, Sync

LAYERS = 3
NAMES = ["model.embed_tokens.weight"] + [
    f"model.layers.{layer}.{name}.weight"
    for layer in range(LAYERS)
    for name in (
        "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate",
        "mlp.experts.0.gate_proj", "mlp.experts.0.up_proj", "mlp.experts.0.down_proj",
    )
]  # fmt: skip
ENGINE = ["model.embed_tokens.weight"] + [
    f"model.layers.{layer}.{name}"
    for layer in range(LAYERS)
    for name in (
        "input_layernorm.weight", "self_attn.qkv_proj.weight", "self_attn.o_proj.weight", "mlp.gate.weight",
        "mlp.experts.w13_weight", "mlp.experts.w2_weight", "self_attn.attn.scale",
    )
]  # fmt: skip


def history(table: dict[str, Any], path: Path) -> History:
    """Write the record of a case and read it again. damage: {line = text} put in place of lines; cut: bytes off the end."""
    syncs: list[Sync] = []
    record = Record(path, keep=1000)
    for index, wanted in enumerate(table["syncs"]):
        syncs.append(_sync(index, wanted, syncs))
        record.append(syncs[-1])
    raw = path.read_bytes()
    lines = raw.split(b"\n")
    for number, text in table.get("damage", {}).items():
        lines[int(number) - 1] = text.encode()
    raw = b"\n".join(lines)
    path.write_bytes(raw[: len(raw) - table.get("cut", 0)])
    return open_history(path)


def _sync(index: int, wanted: dict[str, Any], before: list[Sync]) -> Sync:
    sent = {name: _digest(f"{name} {index}") for name in (*NAMES, *wanted.get("extra", []))}
    last = before[-1] if before else None
    for name in list(sent):
        if last is not None and _any(name, wanted.get("same", [])):
            sent[name] = last.sent[name]
        if "like" in wanted and _any(name, wanted.get("of", ["*"])):
            sent[name] = before[wanted["like"]].sent[name]
        if _any(name, wanted.get("lack", [])):
            del sent[name]
    held = {f"0/{name}": _digest(*(sent.get(part, "old") for part in parts(name, sent))) for name in ENGINE}
    for key in held:
        if last is not None and _any(key.partition("/")[2], wanted.get("stale", [])):
            held[key] = last.held[key]
        if _any(key.partition("/")[2], wanted.get("garbled", [])):
            held[key] = _digest(f"{key} garbled {index}")
    return Sync(
        step=wanted.get("step", index if "loss" not in wanted else None),
        version=wanted.get("version"),
        loss=wanted.get("loss"),
        ok=wanted.get("ok", True),
        message=wanted.get("message", ""),
        run=wanted.get("run", "one"),
        time="2026-01-01T00:00:00Z",
        sent=sent,
        held=held if wanted.get("held", True) else {},
        alike=wanted.get("alike", False),
    )


def _any(name: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _digest(*parts_: str) -> str:
    if len(parts_) == 1 and len(parts_[0]) == 32:
        return parts_[0]  # a tensor by itself is held as it was sent
    return hashlib.md5(" ".join(parts_).encode(), usedforsecurity=False).hexdigest()
