"""A world made up for one case: logprobs whose differences go away when an experiment changes the right thing.

A case's `effects` are {undone_by, size, share}: noise of that size on that share of tokens, which the named change takes away:
heat, cut, cold, config, fresh, path, alone, head_fp32, dtype, first, or nothing (unknown). `unable` = {change = "reason"};
`empty`: no token is compared; `lag`, `tools`, `moved`, `experts`: what recorded columns tell; `floor`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ckptcheck.attribution.change import EngineChange, TrainerChange
from ckptcheck.attribution.ladder import climb
from ckptcheck.attribution.rungs import RUNGS
from ckptcheck.attribution.trace import Attribution
from ckptcheck.attribution.world import Unable
from ckptcheck.rollouts import Metadata, Rollout, Rollouts, Sampling, Side, gathered

SEQUENCES, PROMPT, TOKENS = 4, 4, 40
ENGINE = ("cold", "config", "fresh", "path", "alone", "head_fp32", "dtype")
NAMES = {
    "cold": "model.layers.3.mlp.gate_proj.weight",
    "config": "rope_theta 10000, and 500000 in the trainer",
}


class Made:
    """The world of a case."""

    bos: int | None = None

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._table = table
        self._effects = table.get("effects", [])
        self._unable = table.get("unable", {})
        draw = np.random.default_rng(0)
        total = SEQUENCES * TOKENS
        self._true = -np.abs(draw.standard_normal(total)) - 0.5
        self._noise = [
            draw.standard_normal(total) * effect["size"] * (draw.random(total) < effect.get("share", 1.0))
            for effect in self._effects
        ]
        self.rollouts = self._recorded(table)

    def trainer(self, change: TrainerChange) -> np.ndarray:
        self._able("trainer")
        made = self._true.copy()
        for effect, noise in zip(self._effects, self._noise, strict=True):
            by = effect["undone_by"]
            told = {
                "heat": change.temperature == 0.7,
                "cut": change.top_p < 1,
                "first": change.drop == 1,
            }
            if told.get(by):  # the trainer then makes the same difference as the engine
                made += noise
        return made

    def engine(self, change: EngineChange) -> np.ndarray:
        self._able("engine")
        made = self._true.copy()
        for effect, noise in zip(self._effects, self._noise, strict=True):
            if not (effect["undone_by"] in ENGINE and getattr(change, effect["undone_by"])):
                made += noise
        return self._as_drawn(made)

    def weights(self) -> tuple[str, ...]:
        return self._differs("cold")

    def config(self) -> tuple[str, ...]:
        return self._differs("config")

    def _differs(self, what: str) -> tuple[str, ...]:
        self._able(what)
        return (NAMES[what],) if any(effect["undone_by"] == what for effect in self._effects) else ()

    def _able(self, what: str) -> None:
        if what in self._unable:
            raise Unable(self._unable[what])

    def _as_drawn(self, q: np.ndarray) -> np.ndarray:
        """Return what the engine said when it drew the tokens, which no second scoring undoes."""
        drawn = q.copy()
        for number in range(SEQUENCES):
            own = drawn[number * TOKENS : (number + 1) * TOKENS]
            if self._table.get("lag"):
                own[PROMPT : PROMPT + 12] += 0.3
            if self._table.get("tools"):
                own[20:24] = 0.0
            if self._table.get("experts"):
                own[31:] += 0.4
            if self._table.get("moved"):
                own[:] = np.roll(own, -1)
        return drawn

    def _recorded(self, table: Mapping[str, Any]) -> Rollouts:
        q = self._as_drawn(self._true + sum(self._noise, np.zeros_like(self._true)))
        versions = ["5"] * 12 + ["7"] * (TOKENS - PROMPT - 12) if table.get("lag") else []
        routes = np.tile(np.array([0, 1]), (TOKENS, 1, 1))
        other = routes.copy()
        if table.get("experts"):
            other[30:] = [2, 1]
        rows = []
        for number in range(SEQUENCES):
            part = slice(number * TOKENS, (number + 1) * TOKENS)
            rows.append(
                Rollout(
                    list(range(10 + number, 10 + number + TOKENS)), PROMPT, q[part].tolist(), self._true[part].tolist(),
                    mask=[False] * TOKENS if table.get("empty") else None, versions=versions,
                    engine_routing=other, trainer_routing=routes,
                )
            )  # fmt: skip
        trainer = Side("transformers", temperature=1.0, weight_version="7" if table.get("lag") else None)
        sampling = Sampling(0.7, 0.9 if table.get("top_p") else 1.0)
        return gathered(rows, Metadata("made", engine=Side("vllm"), trainer=trainer, sampling=sampling), double=True)


def attribution(table: Mapping[str, Any]) -> Attribution:
    """Return what the ladder makes of a case."""
    world = Made(table)
    return Attribution("case", climb(world, RUNGS, table.get("floor", 1e-4)), ("vllm", "transformers"), measured=True)
