"""The series of saves of the cases about them: a tiny model whose every tensor moves a little from save to save."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import msgspec
import numpy as np

from ckptcheck.compare.identity import TensorIdentity, compute_root
from ckptcheck.runs.saves.find_saves import read_step
from ckptcheck.runs.saves.save import FileRecord, Save, TensorRecord, UnlikeCopy
from ckptcheck.runs.saves.save_series import SaveSeries
from ckptcheck.runs.saves.strand import Strand
from tests.factories.case_table import CaseTable, StrictTable

LAYERS = 4
SHAPES = {"embed.weight": (64, 32), "norm.weight": (32,)} | {
    f"layers.{layer}.{name}": shape
    for layer in range(LAYERS)
    for name, shape in {
        "q.weight": (32, 32), "up.weight": (64, 32), "norm.weight": (32,), "experts.0.down.weight": (32, 64),
    }.items()
}  # fmt: skip
STEP = 0.01
"""How far a weight moves from save to save, relative to its size."""


class SaveTable(StrictTable, kw_only=True):
    """A save. Its tensors have moved since the one before, except as it says."""

    step: int
    folder: str = "step_{}"
    strand: str = ""
    """Another strand than that of the folder."""
    like: int | None = None
    """Step of the save whose weights it repeats, or those in `of`."""
    of: list[str] = msgspec.field(default_factory=lambda: ["*"])
    moments_like: int | None = None
    """Step of the save whose moments it repeats, or those in `of`."""
    moments: bool = True
    zero_moments: bool = False
    jump: dict[str, float] = {}
    """Pattern of weights → how far they move, relative to their size."""
    move: float = STEP
    changed: float = 1.0
    """Share of the elements that move."""
    other: bool = False
    """The weights of another run."""
    lack: list[str] = []
    """Patterns of weights that it does not have."""
    shapes: dict[str, list[int]] = {}
    dtype: str = "F32"
    counters: dict[str, float] = {}
    rates: dict[str, float] = {}
    logged: dict[str, float] = {}
    files: list[str] = []
    config: dict[str, str] = {}
    defects: list[str] = []
    parts: dict[str, str] = {}
    """File → what stands for its content."""
    unlike: dict[str, list[str]] = {}
    """File of a rank → the tensors in which it is not the copy that it should be."""
    constant: list[str] = []
    """Patterns of weights that never move."""


class SeriesCase(CaseTable, kw_only=True):
    """A case of a rule on the saves of a run."""

    saves: list[SaveTable]
    resumed: list[SaveTable] = []
    """What was saved after the load; `like` names the save that was loaded."""
    watched: dict[str, int] = {}
    """Step of a sync → step of the save whose weights it sent; -1 for others."""
    trackers: dict[str, str] = {}
    empty_folders: dict[str, int] = {}


def build_series(table: Mapping[str, Any]) -> SaveSeries:
    """Return the evidence of a case."""
    case = msgspec.convert(table, SeriesCase)
    values: dict[int, dict[str, np.ndarray[Any, Any]]] = {}
    saves = [_build(number, wanted, values) for number, wanted in enumerate(case.saves)]
    by_step = {save.number: save for save in saves}
    resumed = [
        _build(100 + number, wanted, {save.number: _values(save) for save in saves})
        for number, wanted in enumerate(case.resumed)
    ]
    strands: dict[str, list[Save]] = {}
    for save in saves:
        strands.setdefault(save.strand, []).append(save)
    watched = {
        int(step): by_step[like].identity if like in by_step else "f" * 64 for step, like in case.watched.items()
    }
    return SaveSeries(
        "run",
        tuple(Strand(name, tuple(of_strand)) for name, of_strand in strands.items()),
        empty_folders=case.empty_folders,
        trackers=case.trackers,
        watched=watched,
        resumed=tuple(resumed),
    )


def _values(save: Save) -> dict[str, Any]:
    return {name: np.frombuffer(record.sample, "<f4").reshape(record.shape) for name, record in save.weights.items()}


def _build(number: int, wanted: SaveTable, values: dict[int, Any]) -> Save:
    draw = np.random.default_rng([number, wanted.step])
    last = values[max(values)] if values else None
    now: dict[str, Any] = {}
    for name, shape in (SHAPES | {name: tuple(shape) for name, shape in wanted.shapes.items()}).items():
        if any(fnmatchcase(name, pattern) for pattern in wanted.lack):
            continue
        first = np.random.default_rng([7, len(name), sum(name.encode())]).standard_normal(shape)
        before = last[name] if last is not None and name in last and last[name].shape == shape else first
        move = next((by for pattern, by in wanted.jump.items() if fnmatchcase(name, pattern)), wanted.move)
        if any(fnmatchcase(name, pattern) for pattern in wanted.constant):
            move = 0.0
        now[name] = (before + move * draw.standard_normal(shape)).astype("<f4")
        if wanted.changed < 1:
            now[name] = np.where(draw.random(shape) < wanted.changed, now[name], before).astype("<f4")
        if wanted.other:
            now[name] = draw.standard_normal(shape).astype("<f4")
        if wanted.like is not None and any(fnmatchcase(name, pattern) for pattern in wanted.of):
            now[name] = values[wanted.like][name]
    if not wanted.other:
        values[wanted.step] = now
    else:
        values[wanted.step] = last or now
    weights = {
        name: TensorRecord(wanted.dtype, array.shape, _digest(array.tobytes()), "model.safetensors", array.tobytes())
        for name, array in now.items()
    }
    states: dict[str, TensorRecord] = {}
    for name in now if wanted.moments else ():
        content = f"{name} of {wanted.step}"
        if wanted.moments_like is not None and any(fnmatchcase(name, pattern) for pattern in wanted.of):
            content = f"{name} of {wanted.moments_like}"
        if wanted.zero_moments:
            content = f"{name} zero"
        states[f"optim.{name}.exp_avg"] = TensorRecord(
            "F32", now[name].shape, _digest(content.encode()), "optimizer.pt", zero=wanted.zero_moments
        )
    folder = wanted.folder.format(wanted.step)
    return Save(
        address=f"run/{folder}",
        name=folder,
        strand=wanted.strand or wanted.folder.format("*"),
        number=wanted.step,
        word=(read_step(folder.split("/")) or (0, "", 0))[1],
        form="Hugging Face",
        files=dict.fromkeys([*wanted.files, "model.safetensors"], 1),
        identity=compute_root({name: TensorIdentity(*one.content) for name, one in weights.items()}),
        weights={} if wanted.defects else weights,
        states={} if wanted.defects else states,
        parts={file: FileRecord(_digest(content.encode()), 3) for file, content in wanted.parts.items()},
        unlike_copies=[
            UnlikeCopy(file, "model_world_size_4_rank_0.pt", tuple(names)) for file, names in wanted.unlike.items()
        ],
        counters=wanted.counters,
        rates=wanted.rates,
        logged_rates=wanted.logged,
        config=wanted.config,
        defects=wanted.defects,
    )


def _digest(raw: bytes) -> str:
    return hashlib.md5(raw, usedforsecurity=False).hexdigest()
