"""A world made up for one case: logprobs whose differences go away when an experiment changes the right thing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import numpy as np

from ckptcheck.linter.rule import Skip
from ckptcheck.live.experiments.attribution.experiment import EngineChange, TrainerChange
from ckptcheck.live.experiments.attribution.experiments import EXPERIMENTS
from ckptcheck.live.experiments.attribution.search import Attribution, run_search
from ckptcheck.rollouts import Metadata, Rollout, Rollouts, SamplingInfo, ScorerInfo, build_rollouts
from tests.factories.case_table import CaseTable, StrictTable

SEQUENCES, PROMPT, TOKENS = 4, 4, 40
ENGINE = ("cold", "config", "fresh", "path", "alone", "head_fp32", "dtype")
NAMES = {
    "cold": "model.layers.3.mlp.gate_proj.weight",
    "config": "rope_theta 10000, and 500000 in the trainer",
}


class Effect(StrictTable, kw_only=True):
    """Noise that one change of an experiment takes away."""

    undone_by: Literal[
        "heat", "cut", "cold", "config", "fresh", "path", "alone", "head_fp32", "dtype", "first", "nothing"
    ]
    """The change; nothing: none takes it away, and the cause stays unknown."""
    size: float
    """The standard deviation, in nats."""
    share: float = 1.0
    """The share of the tokens that have it."""


class AttributionCase(CaseTable, kw_only=True):
    """A case of a rule on the causes of a gap."""

    effects: list[Effect] = []
    unable: dict[Literal["trainer", "engine", "cold", "config"], str] = {}
    """What cannot be done → the reason."""
    empty: bool = False
    """No token is compared."""
    lag: bool = False
    """The first tokens of each response are from an older version of the weights."""
    all_lag: bool = False
    """With `lag`: all of them are."""
    lag_size: float = 0.3
    """With `lag`: by how many nats the older weights differ."""
    tools: bool = False
    """Some tokens, which the engine did not draw, have the logprob 0."""
    moved: bool = False
    """Each token has the logprob of the next one."""
    experts: bool = False
    """From a token on the engine routes to other experts."""
    top_p: bool = False
    """The engine drew with top_p = 0.9."""
    floor: float = 1e-4


class FakeBackend:
    """The world of a case."""

    bos: int | None = None

    def __init__(self, case: AttributionCase) -> None:
        self._case = case
        self._effects = case.effects
        self._unable: Mapping[Any, str] = case.unable
        draw = np.random.default_rng(0)
        total = SEQUENCES * TOKENS
        self._true = -np.abs(draw.standard_normal(total)) - 0.5
        self._noise = [
            draw.standard_normal(total) * effect.size * (draw.random(total) < effect.share) for effect in self._effects
        ]
        self.rollouts = self._recorded(case)

    def trainer(self, change: TrainerChange) -> np.ndarray:
        self._able("trainer")
        made = self._true.copy()
        for effect, noise in zip(self._effects, self._noise, strict=True):
            by = effect.undone_by
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
            if not (effect.undone_by in ENGINE and getattr(change, effect.undone_by)):
                made += noise
        return self._as_drawn(made, recorded=False)

    def weights(self) -> tuple[str, ...]:
        return self._differs("cold")

    def config(self) -> tuple[str, ...]:
        return self._differs("config")

    def _differs(self, what: str) -> tuple[str, ...]:
        self._able(what)
        return (NAMES[what],) if any(effect.undone_by == what for effect in self._effects) else ()

    def _able(self, what: str) -> None:
        if what in self._unable:
            raise Skip(self._unable[what])

    def _as_drawn(self, q: np.ndarray, *, recorded: bool) -> np.ndarray:
        """Return what the engine says. recorded: when it drew the tokens, the first of them with older weights."""
        drawn = q.copy()
        for number in range(SEQUENCES):
            own = drawn[number * TOKENS : (number + 1) * TOKENS]
            if self._case.lag and recorded:
                own[PROMPT : PROMPT + (TOKENS if self._case.all_lag else 12)] += self._case.lag_size
            if self._case.tools:
                own[20:24] = 0.0
            if self._case.experts:
                own[31:] += 0.4
            if self._case.moved:
                own[:] = np.roll(own, -1)
        return drawn

    def _recorded(self, case: AttributionCase) -> Rollouts:
        q = self._as_drawn(self._true + sum(self._noise, np.zeros_like(self._true)), recorded=True)
        older = TOKENS - PROMPT if case.all_lag else 12
        versions = ["5"] * older + ["7"] * (TOKENS - PROMPT - older) if case.lag else []
        routes = np.tile(np.array([0, 1]), (TOKENS, 1, 1))
        other = routes.copy()
        if case.experts:
            other[30:] = [2, 1]
        rows = []
        for number in range(SEQUENCES):
            part = slice(number * TOKENS, (number + 1) * TOKENS)
            rows.append(
                Rollout(
                    list(range(10 + number, 10 + number + TOKENS)), PROMPT, q[part].tolist(), self._true[part].tolist(),
                    mask=[False] * TOKENS if case.empty else None, versions=versions,
                    engine_routing=other, trainer_routing=routes,
                )
            )  # fmt: skip
        trainer = ScorerInfo("transformers", temperature=1.0, weight_version="7" if case.lag else None)
        sampling = SamplingInfo(0.7, 0.9 if case.top_p else 1.0)
        return build_rollouts(
            rows, Metadata("made", engine=ScorerInfo("vllm"), trainer=trainer, sampling=sampling), double=True
        )


def build_attribution(table: Mapping[str, Any]) -> Attribution:
    """Return what the ladder makes of a case."""
    case = msgspec.convert(table, AttributionCase)
    world = FakeBackend(case)
    return Attribution(
        "case",
        run_search(world, EXPERIMENTS, case.floor),
        ("vllm", "transformers"),
        has_measured_floor=True,
    )
