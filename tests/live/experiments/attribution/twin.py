"""Faults planted in a twin of a real tiny model, and what the search makes of each.

The trainer is transformers with a model of fixtures/live.py; the engine is the same model with one thing wrong, and undoes just
that where an experiment changes just that.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import live
import numpy as np
import torch
import transformers

from ckptcheck.linter.rule import Skip
from ckptcheck.live.experiments.attribution.experiment import EngineChange, TrainerChange
from ckptcheck.live.experiments.attribution.experiments import EXPERIMENTS
from ckptcheck.live.experiments.attribution.search import Attribution, SearchResult, run_search
from ckptcheck.rollouts import Metadata, Rollout, Rollouts, SamplingInfo, ScorerInfo, build_rollouts
from ckptcheck.rollouts.metrics.sampling_distribution import processed

FLOOR = {"float32": 1e-4, "bfloat16": 5e-3}
PROMPT, RESPONSE, NUMBER = 10, 32, 4
MODELS = ("llama", "qwen3", "qwen3-moe")


@dataclass(frozen=True)
class Fault:
    """What is wrong with the job. layer, experiment: what the search should name first; "" for a healthy run.

    weights: edits the engine's. config: of the engine's config. temperature, top_p: of the sampling; processed: the engine's
    logprobs are of what it sampled from; divides: the trainer divides by the temperature; hidden: by which the engine
    divides and nobody knows. wanders: noise of the engine that a change takes away.
    """

    name: str
    layer: str = ""
    experiment: str = ""
    weights: Callable[[Any, int], None] | None = None
    config: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    head: str = ""
    temperature: float = 1.0
    top_p: float = 1.0
    processed: bool = False
    divides: bool = False
    hidden: float = 1.0
    shift: int = 0
    drop: int = 0
    double: bool = False
    tools: bool = False
    lag: bool = False
    wanders: str = ""
    routed: bool = False
    models: tuple[str, ...] = MODELS
    also: str = ""


def moved(model: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        weight.mul_(1 + 0.05 * torch.randn(weight.shape, generator=generator))


def exchanged(model: Any, seed: int) -> None:
    mlp = model.model.layers[1].mlp
    gate, up = mlp.gate_proj.weight, mlp.up_proj.weight
    gate.data, up.data = up.data.clone(), gate.data.clone()


def wrong_expert(model: Any, seed: int) -> None:
    experts = model.model.layers[1].mlp.experts
    for weight in experts.parameters():
        weight[[0, 1]] = weight[[1, 0]].clone()


DENSE = ("llama", "qwen3")
FAULTS = (
    Fault("healthy"),
    Fault("healthy at T 0.7, both divide", temperature=0.7, processed=True, divides=True),
    Fault("healthy with top-p off and raw logprobs", temperature=0.7),
    Fault("raw logprobs, the trainer divides", "semantics", "temperature", temperature=0.7, divides=True),
    Fault("processed logprobs, the trainer's are raw", "semantics", "temperature", temperature=0.6, processed=True),
    Fault("raw logprobs at T 1.2", "semantics", "temperature", temperature=1.2, divides=True),
    Fault("a temperature that nobody knows of", "semantics", "temperature", hidden=1.3),
    Fault("top-p renormalised", "semantics", "top-p and top-k", top_p=0.8, processed=True),
    Fault("logprobs of the next token", "semantics", "logprobs moved by a token", shift=1),
    Fault("logprobs of the token before", "semantics", "logprobs moved by a token", shift=-1),
    Fault("BOS dropped by the engine", "semantics", "first token", drop=1),
    Fault("BOS twice in the engine", "semantics", "first token", double=True),
    Fault("answers of tools are counted", "semantics", "tokens that were not scored", tools=True),
    Fault("another rope_theta", "semantics", "config", config={"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}),
    Fault("another rms_norm_eps", "semantics", "config", config={"rms_norm_eps": 0.05}),
    Fault("weights of the step before", "weights", "weights", weights=moved),
    Fault("gate and up exchanged in a layer", "weights", "weights", weights=exchanged, models=DENSE),
    Fault("two experts exchanged", "weights", "weights", weights=wrong_expert, models=("qwen3-moe",)),
    Fault("a stale prefix cache", "path", "caches", wanders="fresh"),
    Fault("decoding is off", "path", "decoding", wanders="path"),
    Fault("results depend on the batch", "path", "batch", wanders="alone"),
    Fault("a head in bfloat16", "precision", "head in float32", head="bfloat16"),
    Fault("an engine in bfloat16", "precision", "all in float32", dtype="bfloat16", models=DENSE),
    Fault("half of the tokens lag", "objective", "tokens of older weights", lag=True),
    Fault("tokens go to other experts", "routing", "experts", routed=True, models=("qwen3-moe",)),
    Fault(
        "raw logprobs, and weights of the step before", "semantics", "temperature", temperature=0.7, divides=True,
        weights=moved, also="weights",
    ),
)  # fmt: skip


@cache
def base(name: str) -> Any:
    folder = live.write(name, Path(tempfile.mkdtemp()) / name)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


def built(name: str, config: dict[str, Any], state: dict[str, Any], dtype: str) -> Any:
    own = copy.deepcopy(base(name).config)
    for key, value in config.items():
        setattr(own, key, value)
    model = transformers.AutoModelForCausalLM.from_config(own, attn_implementation="eager").eval()
    model.load_state_dict(state)
    return model.to(getattr(torch, dtype))


def tables(model: Any, sequences: list[list[int]], head: str = "") -> list[np.ndarray]:
    """Return the raw logprobs of every next token: [tokens, vocabulary] for each sequence."""
    with torch.no_grad():
        found = []
        for tokens in sequences:
            hidden = model.model(torch.tensor([tokens]))[0][0]
            weight = model.lm_head.weight
            if head:
                hidden, weight = hidden.to(getattr(torch, head)), weight.to(getattr(torch, head))
            found.append((hidden @ weight.T).float().log_softmax(-1).double().numpy())
    return found


class Twin:
    """A world: trainer and engine are one model, the engine with a fault."""

    bos: int | None = None

    def __init__(self, fault: Fault, name: str, seed: int) -> None:
        self.fault, self.name, self.seed = fault, name, seed
        self._trainer = base(name)
        torch.manual_seed(seed)
        self._state = copy.deepcopy(self._trainer.state_dict())
        self._damaged = self._state
        if fault.weights is not None:
            with torch.no_grad():
                other = copy.deepcopy(self._trainer)
                fault.weights(other, seed + 100)
                self._damaged = other.state_dict()
        draw = np.random.default_rng(seed)
        self.sequences = [[1, *draw.integers(8, 500, PROMPT - 1).tolist()] for _ in range(NUMBER)]
        for tokens in self.sequences:
            for _ in range(RESPONSE):
                row = processed(tables(self._trainer, [tokens])[0][-1:], fault.temperature, fault.top_p)[0]
                tokens.append(int(draw.choice(len(row), p=np.exp(row) / np.exp(row).sum())))
        self.rollouts = Rollouts()
        self._draws = True
        drawn = self.engine(EngineChange())
        self._draws = False
        self.rollouts = self._recorded(drawn, self.trainer(TrainerChange(self._divisor)))

    @property
    def _divisor(self) -> float:
        return self.fault.temperature if self.fault.divides else 1.0

    def trainer(self, change: TrainerChange) -> np.ndarray:
        if change.temperature is None:
            change = replace(change, temperature=self._divisor)
        return self._logprobs(self._trainer, change.temperature or 1.0, change.top_p, change.drop, change.prepend)

    def engine(self, change: EngineChange) -> np.ndarray:
        fault = self.fault
        if fault.routed and change != EngineChange():
            raise Skip("the engine is gone")
        config = {} if change.config else fault.config
        state = self._state if change.cold else self._damaged
        model = built(self.name, config, state, change.dtype or fault.dtype)
        head = "" if change.head_fp32 or change.dtype == "float32" else fault.head
        heat = (fault.temperature if fault.processed else 1.0) * fault.hidden
        drop = fault.drop
        prepend = (1,) if fault.double else ()
        q = self._logprobs(model, heat, fault.top_p if fault.processed else 1.0, drop, prepend, head)
        if fault.wanders and not getattr(change, fault.wanders):
            q = q + 0.05 * np.random.default_rng(self.seed).standard_normal(len(q))
        if fault.lag and self._draws:
            old = copy.deepcopy(self._trainer)
            with torch.no_grad():
                moved(old, self.seed)
            older = self._logprobs(old, heat, 1.0)
            q = np.where(
                self._flat(lambda tokens: [place < PROMPT + RESPONSE // 2 for place in range(len(tokens))]), older, q
            )
        if fault.routed:
            q = np.where(self._flat(lambda tokens: [place >= PROMPT + 25 for place in range(len(tokens))]), q + 0.3, q)
        if fault.tools:
            q = np.where(self._flat(lambda tokens: [20 <= place < 26 for place in range(len(tokens))]), 0.0, q)
        if fault.shift:
            q = np.concatenate([np.roll(q[part], -fault.shift) for part in self._parts()])
        return q

    def weights(self) -> tuple[str, ...]:
        return tuple(name for name, value in self._state.items() if not torch.equal(value, self._damaged[name]))

    def config(self) -> tuple[str, ...]:
        return tuple(f"{key} {value}" for key, value in self.fault.config.items())

    def _logprobs(
        self, model: Any, heat: float, top_p: float, drop: int = 0, prepend: tuple[int, ...] = (), head: str = "",
    ) -> np.ndarray:  # fmt: skip
        given = [[*prepend, *tokens[drop:]] for tokens in self.sequences]
        found = []
        for tokens, told in zip(self.sequences, given, strict=True):
            rows = processed(tables(model, [told], head)[0], heat, top_p)
            own = rows[np.arange(len(told) - 1), told[1:]]
            offset = len(tokens) - len(own)
            found.append(np.concatenate([np.full(offset, np.nan), own]) if offset > 0 else own[-len(tokens) :])
        return np.concatenate(found)

    def _parts(self) -> Iterator[slice]:
        begin = 0
        for tokens in self.sequences:
            yield slice(begin, begin + len(tokens))
            begin += len(tokens)

    def _flat(self, flags: Callable[[list[int]], list[bool]]) -> np.ndarray:
        return np.concatenate([np.array(flags(tokens)) for tokens in self.sequences])

    def _recorded(self, q: np.ndarray, p: np.ndarray) -> Rollouts:
        fault = self.fault
        rows = []
        for number, (tokens, part) in enumerate(zip(self.sequences, self._parts(), strict=True)):
            versions = ["3"] * (RESPONSE // 2) + ["4"] * (RESPONSE - RESPONSE // 2) if fault.lag else []
            one, other = (np.nan_to_num(side[part], nan=0.0).tolist() for side in (q, p))
            routes = np.tile(np.array([0, 1]), (len(tokens), 2, 1)) if fault.routed else None
            changed = None
            if routes is not None:
                changed = routes.copy()
                changed[PROMPT + 24 :, 1] = [2, 1]
            rows.append(
                Rollout(tokens, PROMPT, one, other, versions=versions, engine_routing=changed, trainer_routing=routes)
            )
            assert number < NUMBER
        sampling = SamplingInfo(fault.temperature, fault.top_p, 0, RESPONSE, self.seed)
        told = "processed" if fault.processed else "raw"
        trainer = ScorerInfo("transformers", temperature=self._divisor, weight_version="4" if fault.lag else None)
        made = build_rollouts(
            rows,
            Metadata("twin", engine=ScorerInfo("twin"), trainer=trainer, sampling=sampling, logprobs=told),
            double=True,
        )
        return self._with_tables(made) if fault.hidden != 1.0 else made

    def _with_tables(self, made: Rollouts) -> Rollouts:
        places = np.concatenate([np.arange(part.start + PROMPT, part.stop) for part in self._parts()])
        tables_ = tables(self._trainer, self.sequences)
        trainer = np.concatenate([table[PROMPT - 1 : -1] for table in tables_])
        engine = processed(trainer, self.fault.hidden)
        return made.with_columns(
            None, full_positions=places.astype("<i8"), trainer_full_logprobs=trainer, engine_full_logprobs=engine
        )


def search_twin(fault: Fault, name: str, seed: int) -> SearchResult:
    """Return what the search finds."""
    world = Twin(fault, name, seed)
    return run_search(world, EXPERIMENTS, FLOOR["float32"])


def told(found: SearchResult) -> Attribution:
    return Attribution("twin", found, has_measured_floor=True)
