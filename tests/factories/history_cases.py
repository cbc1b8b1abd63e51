"""The records of the history rules' cases: a tiny model, synced once for every table of ``syncs``."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from ckptcheck.consumers.engine_tensors import find_source_tensors
from ckptcheck.runs.history.history import History, ResponseVersions, SavedWeights, open_history
from ckptcheck.runs.history.record import GapRecord, LoggedStep, ProbeRecord, Record, SyncRecord
from tests.factories.case_table import CaseTable, StrictTable

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


class SyncTable(StrictTable, kw_only=True):
    """A sync. What it sends is another number in every tensor, except for those of `same` and `like`."""

    step: int | None = None
    """The step of the trainer; without one the number of the sync, if it has no loss."""
    version: str | None = None
    loss: float | None = None
    ok: bool = True
    message: str = ""
    run: str = "one"
    alike: bool = False
    """As in `SyncRecord`, like the fields above."""
    same: list[str] = []
    """Patterns of names that are sent as at the sync before."""
    like: int | None = None
    """The sync from which all, or the names in `of`, are sent again."""
    of: list[str] = msgspec.field(default_factory=lambda: ["*"])
    stale: list[str] = []
    """Patterns of the engine's tensors that stay as they were."""
    swapped: dict[str, str] = {}
    """Tensor of the engine → the name whose value it holds in place of its own."""
    late: dict[str, int] = {}
    """Tensor of the engine → the sync whose value it holds."""
    same_values: list[str] = []
    """Patterns of names that are all sent with one value."""
    garbled: list[str] = []
    """Patterns of the engine's tensors that come out as something else."""
    unseen: list[str] = []
    """Patterns of the engine's tensors that could not be read."""
    empty: list[str] = []
    """Patterns of the engine's tensors that have no bytes."""
    split: list[str] = []
    """Patterns of fused tensors that are held by their parts, each as it was sent."""
    partial: str = ""
    group: str = ""
    resting: dict[str, str] = {}
    """Further tensors of the engine that nothing is sent for → what stands for their values."""
    lack: list[str] = []
    """Patterns of names that are not sent."""
    extra: list[str] = []
    """Further names that are sent."""
    probe: float | None = None
    """Mean |Δ| of a probe of 124 tokens, the largest being three times that; None: no probe."""
    floor: float | None = None
    """The model's floor, as the probe knows it."""
    gap: float | None = None
    """The gap that the job logged before the sync, about the tokens of the step before; None: it logged none."""
    metric: str = "sampling/sampling_logp_difference/mean"
    """What the job calls it."""
    dtype: str = "float32"
    """In which both sides compute."""
    suspects: list[str] = []
    coverage: float | None = None
    odd: dict[str, str] = {}
    nbytes: int = 0
    """Bytes sent, as in `SyncRecord`."""
    payload: str = ""
    """What stands for the values of a delta that is sent."""
    payload_bytes: int = 8192
    before: str | None = None
    """The version that the engine had before the sync."""
    identity: str = ""
    """A hexadecimal digit that stands for the set of weights that was sent; "" where it was not named."""
    held: bool = True
    """False: nobody asked the engine what it holds."""
    knows: bool = False
    """Whether the watch knows the trainer's parameters."""
    trained: list[str] = []
    """Patterns of names whose parameter has other values than were sent, each time new ones."""
    frozen: list[str] = []
    """As in `SyncRecord`, like the fields below."""
    unsent: list[str] = []
    altered: dict[str, str] = {}
    merged: float | None = None
    written: dict[str, int] = {}
    """Tensor of the engine → the sync whose value it holds before this one; -1 for a value of its own."""
    missing: bool = False
    """Whether this is no sync: rollouts began without one."""


class HistoryCase(CaseTable, kw_only=True):
    """A case of a rule on a record of syncs."""

    syncs: list[SyncTable]
    damage: dict[str, str] = {}
    """Number of a line, from 1 → text in its place."""
    cut: int = 0
    """How many bytes are off the end."""
    saved: str = ""
    """A hexadecimal digit that stands for the weights of a checkpoint that the record is held against; "" for none."""
    responses: dict[str, int] | None = None
    """Weight version → responses that carry it, which the record is held against; None for none."""
    logged: list[LoggedStep] = []
    """What the job's log says of its steps beside the gap."""


def build_history(table: Mapping[str, Any], path: Path) -> History:
    """Write the record of a case and read it again."""
    case = msgspec.convert(table, HistoryCase)
    syncs: list[SyncRecord] = []
    record = Record(path, keep=1000)
    for index, wanted in enumerate(case.syncs):
        syncs.append(_sync(index, wanted, syncs))
        record.append(syncs[-1])
    raw = path.read_bytes()
    lines = raw.split(b"\n")
    for number, text in case.damage.items():
        lines[int(number) - 1] = text.encode()
    raw = b"\n".join(lines)
    path.write_bytes(raw[: len(raw) - case.cut])
    history = open_history(
        path,
        saved=SavedWeights("./saved", 64 * case.saved) if case.saved else None,
        responses=ResponseVersions("rollouts.safetensors", case.responses) if case.responses is not None else None,
    )
    return replace(history, logged=case.logged)


def _sync(index: int, wanted: SyncTable, before: list[SyncRecord]) -> SyncRecord:
    sent = {name: _digest(f"{name} {index}") for name in (*NAMES, *wanted.extra)}
    last = before[-1] if before else None
    for name in list(sent):
        if last is not None and _matches_any(name, wanted.same):
            sent[name] = last.sent[name]
        if wanted.like is not None and _matches_any(name, wanted.of):
            sent[name] = before[wanted.like].sent[name]
        if _matches_any(name, wanted.same_values):
            sent[name] = _digest("one")
        if _matches_any(name, wanted.lack):
            del sent[name]
    held = {
        f"0/{name}": _digest(*(sent.get(part, "old") for part in find_source_tensors(name, sent))) for name in ENGINE
    }
    for key in [key for key in held if _matches_any(key.partition("/")[2], wanted.split)]:
        held |= {f"0/{part}": sent[part] for part in find_source_tensors(key.partition("/")[2], sent)}
        del held[key]
    held |= {f"0/{name}": _digest(value) for name, value in wanted.resting.items()}
    held |= {f"0/{name}": sent[other] for name, other in wanted.swapped.items()}
    held |= {f"0/{name}": before[other].sent[name] for name, other in wanted.late.items()}
    unseen = [key for key in held if _matches_any(key.partition("/")[2], wanted.unseen)]
    held = {key: value for key, value in held.items() if key not in unseen}
    for key in held:
        if last is not None and _matches_any(key.partition("/")[2], wanted.stale):
            held[key] = last.held[key]
        if _matches_any(key.partition("/")[2], wanted.empty):
            held[key] = "0" * 32
        if _matches_any(key.partition("/")[2], wanted.garbled):
            held[key] = _digest(f"{key} garbled {index}")
    if wanted.missing:
        return SyncRecord(step=wanted.step, run=wanted.run, missing=True)
    trained = {name: _digest(f"{name} trained {index}") for name in sent if _matches_any(name, wanted.trained)}
    return SyncRecord(
        trained=trained if wanted.knows or trained else None,
        frozen=wanted.frozen,
        unsent=wanted.unsent,
        altered=wanted.altered,
        merged=wanted.merged,
        written={
            f"0/{name}": _digest(f"{name} written") if other < 0 else before[other].held[f"0/{name}"]
            for name, other in wanted.written.items()
        },
        step=index if wanted.step is None and wanted.loss is None else wanted.step,
        before=wanted.before,
        version=wanted.version,
        identity=64 * wanted.identity or None,
        loss=wanted.loss,
        ok=wanted.ok,
        message=wanted.message,
        run=wanted.run,
        nbytes=wanted.nbytes,
        payload={"0.values": _digest(wanted.payload)} if wanted.payload else {},
        payload_bytes=wanted.payload_bytes if wanted.payload else 0,
        probe=None if wanted.probe is None else _make_probe(wanted.probe, wanted.floor),
        gap=None if wanted.gap is None else _make_gap(wanted, index),
        suspects=wanted.suspects,
        coverage=wanted.coverage,
        odd=wanted.odd,
        time="2026-01-01T00:00:00Z",
        sent=sent,
        held=held if wanted.held else {},
        unseen=unseen,
        partial=wanted.partial,
        group=wanted.group,
        alike=wanted.alike,
    )


def _make_probe(mean: float, floor: float | None) -> ProbeRecord:
    return ProbeRecord(*((mean, 3 * mean) if math.isfinite(mean) else (None, None)), 124, floor)


def _make_gap(wanted: SyncTable, index: int) -> GapRecord:
    assert wanted.gap is not None
    value = wanted.gap if math.isfinite(wanted.gap) else None
    return GapRecord(wanted.metric, value, (index if wanted.step is None else wanted.step) - 1, wanted.dtype)


def _matches_any(name: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _digest(*parts_: str) -> str:
    if len(parts_) == 1 and len(parts_[0]) == 32:
        return parts_[0]  # a tensor by itself is held as it was sent
    return hashlib.md5(" ".join(parts_).encode(), usedforsecurity=False).hexdigest()
