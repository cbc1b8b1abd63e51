"""Builds the rollouts of a case: what an engine drew and a trainer scored, and what the case does to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from ckptcheck.metrics.floor import Floor
from ckptcheck.parity.gates import Gates
from ckptcheck.parity.judged import Judged
from ckptcheck.parity.series import Member, Series
from ckptcheck.rollouts import Metadata, Rollout, Rollouts, gathered
from ckptcheck.rollouts.form import defects


def rolled(
    sequences: int = 4,
    prompt: int = 4,
    response: int = 32,
    noise: float = 0.001,
    seed: int = 0,
    mean: float = 0.3,
    versions: str | Sequence[str] = "",
    layers: int = 0,
    top: int = 0,
    full: int = 0,
    reference: bool = False,
    trainer: bool = True,
    metadata: Mapping[str, Any] | None = None,
) -> Rollouts:
    """Draw rollouts. noise: of the trainer, in nats. mean: of minus the logprobs. top, full: how many ids are recorded."""
    draw = np.random.default_rng(seed)
    made = []
    for _ in range(sequences):
        engine = -draw.exponential(mean, response)
        scored = np.minimum(engine + noise * draw.standard_normal(response), 0.0)
        routing = draw.integers(0, 8, (prompt + response, layers, 2)) if layers else None
        rows = np.sort(-draw.exponential(3, (response, max(top, 2))), 1)[:, ::-1] if top else None
        ids = np.tile(np.arange(max(top, 2)), (response, 1))
        each = Rollout(draw.integers(0, 100, prompt + response), prompt, engine)  # type: ignore[arg-type]
        each.trainer = scored if trainer else None  # type: ignore[assignment]
        each.reference = scored if reference else None  # type: ignore[assignment]
        words = [versions] if isinstance(versions, str) and versions else list(versions)
        each.versions = [words[place * len(words) // response] for place in range(response)] if words else ()
        each.engine_routing = each.trainer_routing = routing
        each.engine_top = each.trainer_top = None if rows is None else (ids, rows)
        made.append(each)
    found = gathered(made, msgspec.convert(dict(metadata or {}), Metadata))
    if full:
        logits = draw.standard_normal((3, full))
        rows = (logits - np.log(np.exp(logits).sum(1, keepdims=True))).astype(np.float32)
        places = np.array([prompt, prompt + 1, prompt + 2])
        found = found.with_columns(full_positions=places, engine_full_logprobs=rows, trainer_full_logprobs=rows)
    return found


def changed(rollouts: Rollouts, change: Mapping[str, Any]) -> Rollouts:
    """Do one thing to a column, or to a `sequence` of it (`number` tokens from `at`).

    `add`, `times`, `value`, `shift` (by tokens), `ramp` (grows by so much with each token of the response), `drop`,
    `rows` (the numbers, or of a mask: ones, zeros, response, early by a token).
    """
    name = change["column"]
    if change.get("drop"):
        return Rollouts(rollouts.metadata, {key: value for key, value in rollouts.columns.items() if key != name})
    if "rows" in change:
        rows = change["rows"]
        if isinstance(rows, str):
            (block,) = rollouts.blocks()
            early = block.positions >= rollouts.prompts[block.owners] - 1
            rows = {"ones": np.ones, "zeros": np.zeros}[rows](len(early)) if rows in ("ones", "zeros") else early
            rows = block.after_prompt if change["rows"] == "response" else rows
        return rollouts.with_columns(**{name: np.array(rows, change["dtype"])})
    values = np.array(rollouts.columns[name])
    where = slice(None)
    if "sequence" in change:
        inside = rollouts.sequence(change["sequence"])
        begin = inside.start + change.get("at", 0)
        where = slice(begin, min(inside.stop, begin + change.get("number", inside.stop)))
    part = values[where]
    if "shift" in change:
        part = np.roll(part, change["shift"], 0)
    elif "ramp" in change:
        (block,) = rollouts.blocks()
        part = part - change["ramp"] * np.maximum(block.positions - rollouts.prompts[block.owners], 0)
    elif "value" in change:
        part = np.full_like(part, float(change["value"]))
    else:
        part = part * change.get("times", 1) + change.get("add", 0)
    values[where] = part
    return rollouts.with_columns(**{name: values})


def judged(table: Mapping[str, Any]) -> Judged:
    """Make the evidence of a case: `rollouts` drawn, `changes` made, `gates`, `floor`, measured with `floor_of`."""
    found = rolled(**table.get("rollouts", {}))
    for change in table.get("changes", []):
        found = changed(found, change)
    wrong = tuple(defects(found.columns, found.metadata))
    found = Rollouts(found.metadata, found.columns, wrong, "rollouts.safetensors")
    floor = Floor(table["floor"], **table.get("floor_of", {})) if "floor" in table else None
    return Judged("rollouts.safetensors", found, Gates(**table.get("gates", {})), floor)


def series(table: Mapping[str, Any]) -> Series:
    """Make a series of files of a case: `files`, each with what differs from `rollouts`."""
    common = table.get("rollouts", {})
    members = []
    for number, own in enumerate(table["files"]):
        metadata = {**common.get("metadata", {}), **own.get("metadata", {})}
        each = judged({**table, "rollouts": {**common, **own, "metadata": metadata}})
        members.append(Member.of(Judged(f"step{number}.safetensors", each.rollouts)))
    return Series.of(members, Gates(**table.get("gates", {})))
