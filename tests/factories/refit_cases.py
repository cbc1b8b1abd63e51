"""Plays a trial with a fake engine that has faults, and a fake trainer that has none."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from safetensors.numpy import load_file, save_file

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.live.refit.draft import DraftWeights, find_draft_folder
from ckptcheck.live.refit.scoring_inputs import ScoringInputs, TrialTokenizer
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.trial import RefitTrial
from ckptcheck.live.refit.trial_state import Log, Timeouts, TrialPhases, TrialSettings, TrialState
from ckptcheck.live.runtime.engines.base import Bucket, Engine
from ckptcheck.live.runtime.engines.digest import digest
from ckptcheck.live.runtime.engines.sizing import DEFAULT_CONTEXT_LEN
from ckptcheck.live.runtime.process.errors import RemoteError
from ckptcheck.live.runtime.trainers.base import OptimizerStep, ShardDigest, TrainerInfo, UnlikeReplicas, Weight
from ckptcheck.values.shard_digest import sum_shard
from tests.doubles import fake_model as model
from tests.doubles.fake_engine import FakeEngine, ReceivingEngine
from tests.doubles.fake_experts import BalancingFakeEngine
from tests.doubles.fake_fault import Fault
from tests.doubles.fake_images import SeeingFakeEngine
from tests.doubles.fake_serving import FakeServing
from tests.factories.case_table import CaseTable

if TYPE_CHECKING:
    from ckptcheck.values.tensor_part import TensorPart

LAYERS, VOCABULARY = 3, 32


def weights() -> dict[str, np.ndarray]:
    """Return a tiny model: attention with fused parts, experts, norms."""
    shapes: dict[str, tuple[int, ...]] = {model.EMBED: (VOCABULARY, 8), model.HEAD: (VOCABULARY, 8)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        shapes[f"{at}.input_layernorm.weight"] = (8,)
        for part, rows in (("q", 8), ("k", 4), ("v", 4), ("o", 8)):
            shapes[f"{at}.self_attn.{part}_proj.weight"] = (rows, 8)
        for expert in (0, 1):
            for part, shape in (("gate", (6, 8)), ("up", (6, 8)), ("down", (8, 6))):
                shapes[f"{at}.mlp.experts.{expert}.{part}_proj.weight"] = shape
    draw = np.random.default_rng(0)
    return {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


class FakeTrainer:
    """Holds weights as the fake engine computes with them.

    unsteady: each forward pass differs by that many nats. apart: it computes otherwise than the engine. drifting: its training
    does, by that many. device: where it says that it computes.
    babbling: its third greedy token is another, which it prefers by that many nats. extra: sends a weight that no checkpoint
    has. packs: sends that module as if it were quantized. inputs: leaves to the engine what rounding inputs comes to. dtype:
    says that of its weights. frozen: a step leaves weights with these beginnings unchanged. exports: what it
    does wrong when it exports, and when it saves, which is the same code: layers (it exchanges two), rows (it loses the last rows
    of a projection), repeats (it has the first half of that twice), other (it doubles it), omits (a projection), stale (from the
    first step on, what it held at the start). since: from which step on it does. saves: what it does wrong only when it saves.
    megatron: names them as Megatron does, on two stages of two ranks, which hold halves of the rows. unlike: it has two ranks,
    whose copies of a norm differ from that step on.
    """

    info = TrainerInfo("fake", "1", "float32", "", "FakeForCausalLM")

    def __init__(
        self,
        folder: Path,
        *,
        unsteady: float = 0.0,
        apart: bool = False,
        drifting: float = 0.0,
        babbling: float | None = None,
        extra: str = "",
        packs: str = "",
        inputs: bool = False,
        dtype: str = "F32",
        megatron: bool = False,
        unlike: int | None = None,
        device: str = "",
        frozen: Sequence[str] = (),
        exports: str = "",
        since: int = 0,
        saves: str = "",
    ) -> None:
        self._drifting, self._babbling, self._extra, self._dtype = drifting, babbling, extra, dtype
        self._megatron, self._packs, self._frozen, self._exports = megatron, packs, tuple(frozen), exports
        self._since, self._saves = since, saves
        if device:
            self.info = replace(self.info, facts={"device": device})
        if inputs:
            self.info = replace(self.info, facts={"inputs": "the engine rounds them"})
        if megatron:
            self.info = TrainerInfo("megatron", "1", "float32", "TP2·PP2", "FakeForCausalLM")
        self._held, self._folder = weights(), folder
        self._number, self._passes = 0, 0
        self._unsteady, self._apart = unsteady, apart
        self._steps, self._unlike = 0, unlike
        if unlike is not None:
            self.info = replace(self.info, layout="TP2")

    def weights(self) -> list[Weight]:
        held = self._gathered() | ({self._extra: np.zeros(4, np.float32)} if self._extra else {})
        return [
            Weight(name, values.shape, self._dtype, *(megatron_names(name) if self._megatron else ()))
            for name, values in held.items()
        ]

    def score(self, sequences: Sequence[Sequence[int]]) -> list[tuple[float, ...]]:
        self._passes += 1
        moved = (1e-3 if self._apart else 0.0) + self._unsteady * self._passes
        scored = self._cold().score(sequences)
        found = [tuple(value - moved for value in each.prompt_logprobs) for each in scored]
        if self._babbling is not None and len(found) == 2:  # the two ways on from where greedy texts part
            found[0] = (*found[0][:-1], found[1][-1] + self._babbling)
        return found

    def decode_greedy(self, tokens: Sequence[int], number: int) -> tuple[int, ...]:
        said = self._cold().score([tokens], decode=number)[0].decoded_tokens
        if self._babbling is None:
            return said
        self._said = (said[2] + 1) % VOCABULARY
        return (*said[:2], self._said, *said[3:])

    def step(self, sequences: Sequence[Sequence[int]], *, seed: int = 0) -> OptimizerStep:
        scores = tuple(tuple(value + self._drifting for value in each) for each in self.score(sequences))
        self.perturb(0.05, seed=seed)
        return OptimizerStep(1.0, 1.0, scores)

    def perturb(self, scale: float, *, seed: int = 0) -> None:
        self._steps += 1
        draw = np.random.default_rng(seed)
        self._held = {
            name: values
            if self._frozen and name.startswith(self._frozen)
            else (values * (1 + scale * draw.standard_normal(values.shape))).astype(np.float32)
            for name, values in self._held.items()
        }

    def plan_buckets(self, bucket_bytes: int) -> list[Bucket]:
        return self.export(bucket_bytes)

    def export(self, bucket_bytes: int) -> list[Bucket]:
        groups: list[dict[str, np.ndarray]] = [{}]
        extra = {self._extra: np.zeros(4, np.float32)} if self._extra else {}
        for name, values in (self._exported() | extra).items():
            if groups[-1] and sum(each.nbytes for each in groups[-1].values()) + values.nbytes > bucket_bytes:
                groups.append({})
            groups[-1][name] = values
        parcels = []
        for group in groups:
            self._number += 1
            path = self._folder / f"bucket{self._number}.safetensors"
            save_file(group, path)
            shapes = tuple(values.shape for values in group.values())
            nbytes = sum(values.nbytes for values in group.values())
            parcels.append(Bucket({"path": str(path)}, tuple(group), ("F32",) * len(group), shapes, nbytes))
        return parcels

    def send(self, group: Mapping[str, Any], bucket_bytes: int) -> None:
        raise NotImplementedError

    def digests(self) -> dict[str, str]:
        return {name: digest(values) for name, values in self._exported().items()}

    def _exported(self) -> dict[str, np.ndarray]:
        weight, held = f"{self._packs}.weight", self._gathered()
        if weight not in held:
            return held
        packed = {f"{weight}_packed": held[weight], f"{weight}_scale": np.ones(1, np.float32)}
        return {name: values for name, values in held.items() if name != weight} | packed

    def _gathered(self, fault: str = "") -> dict[str, np.ndarray]:
        fault = fault or (self._exports if self._steps >= self._since else "")
        held = weights() if fault == "stale" else dict(self._held)
        one, two = (f"model.layers.{layer}.self_attn.o_proj.weight" for layer in (1, 2))
        if fault == "layers":
            held[one], held[two] = held[two], held[one]
        elif fault == "rows":
            held[one] = np.concatenate([held[one][:-4], np.zeros_like(held[one][-4:])])
        elif fault == "repeats":
            held[one] = np.concatenate([held[one][:-4], held[one][:4]])
        elif fault == "other":
            held[one] = 2 * held[one]
        elif fault == "omits":
            del held[one]
        return held

    def shard_digests(self, pieces: Mapping[str, Sequence[TensorPart]] | None = None) -> list[ShardDigest]:
        exported, found = self._gathered(), []
        for name, values in self._held.items():
            (own,), ranks = megatron_names(name) if self._megatron else ((name,), (0,))
            halves = len(ranks) if values.ndim > 1 else 1
            size = len(values) // halves
            for place, rank in enumerate(ranks):
                begin = size * place if halves > 1 else 0
                there = exported[name][begin : begin + size] if name in exported else None
                part, said = values[begin : begin + size], "" if there is None else digest(there)
                sums = sum_shard(part, (begin,) + (0,) * (values.ndim - 1), values.shape)
                found.append(ShardDigest(name, 0, begin, begin + size, rank, own, digest(part), said, sums))
        return found

    def mismatched_replicas(self) -> tuple[UnlikeReplicas, ...]:
        unlike = UnlikeReplicas("decoder.final_layernorm.weight", ((0,), (1,)), (1,) if self._steps else ())
        return (unlike,) if self._unlike is not None and self._steps >= self._unlike else ()

    def save(self, folder: Path) -> None:
        save_file(self._gathered(self._saves), folder / "model.safetensors")

    def close(self) -> None:
        pass

    def _cold(self) -> FakeEngine:
        return FakeEngine(self._held)


def megatron_names(name: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the name that Megatron has for a weight, as far as the cases need it, and the ranks that hold it."""
    own = re.sub(r"self_attn\.[qkv]_proj", "self_attention.linear_qkv", name.replace("model.layers", "decoder.layers"))
    own = own.replace("self_attn.o_proj", "self_attention.linear_proj")
    own = re.sub(r"experts\.(\d+)\.(gate|up)_proj", r"experts.local_experts.\1.linear_fc1", own)
    own = re.sub(r"experts\.(\d+)\.down_proj", r"experts.local_experts.\1.linear_fc2", own)
    return (own,), (2, 3) if ".layers." in name and ".layers.0." not in name else (0, 1)


class CapturedModules:
    """Plays the modules of one side: the same outputs on all sides, but for rounding and for factors.

    factors: point → what its output is multiplied with; 0: it is not finite. seed: of the rounding, 0 for the float32 side.
    """

    POINTS = ("model.embed_tokens", "model.layers.0.self_attn.q_proj", "model.layers.0.mlp", "model.norm", "lm_head")

    def __init__(self, factors: Mapping[str, float], seed: int) -> None:
        self._factors, self._seed = factors, seed

    def capture_activations(self, tokens: Sequence[int], folder: Path) -> dict[str, np.ndarray]:
        found, draw = {}, np.random.default_rng(self._seed)
        for number, point in enumerate(self.POINTS):
            rows = 1 if point == "lm_head" else len(tokens)
            exact = np.random.default_rng(100 + number).standard_normal((rows, 64))
            noise = 0.004 * draw.standard_normal(exact.shape) if self._seed else 0.0
            factor = self._factors.get(point, 1.0)
            found[point] = (exact * (1 + noise) * (factor or np.nan)).astype(np.float32)
        return found

    def close(self) -> None:
        pass


def refuse_forced_decoding(*_: Any) -> Any:
    """Be an engine that cannot be made to decode given tokens."""
    raise RemoteError("fake", "follow", "RuntimeError", "it has a draft", "")


class TrialCase(CaseTable, kw_only=True):
    """A case of a rule on a trial of weight syncs, or on its engine."""

    faults: list[Fault] = []
    """What the fake engine does wrong."""
    receives: bool = False
    """It can say what reached its loader."""
    ranks: int = 1
    """On how many ranks it is."""
    draft: bool = False
    """It has a draft model."""
    empty: list[str] = []
    """Its tensors that have no elements."""
    scratch: bool = False
    """It has memory that every forward pass changes."""
    calibrated: bool = False
    """A buffer of it holds a scale that comes with the weights."""
    device: str = "memory"
    """Where it says that it computes."""
    flaws: list[str] | None = None
    """It serves requests meanwhile, and does these things wrong, see `FakeServing`."""
    cache: bool = False
    """It keeps prefixes."""
    speculates: bool = False
    """It cannot be made to decode given tokens."""
    accepts: list[float] = []
    """The acceptance lengths of its draft model, in the order in which the trial asks for them."""
    drafts: str = "model"
    """What its draft model is: model (of its own), or mtp."""
    sends_draft: bool = False
    """The draft model has a checkpoint of its own, and is sent too."""
    version: tuple[str, str] | None = None
    """The name and the version that it says of itself."""
    length: int = DEFAULT_CONTEXT_LEN
    """How many tokens the model has room for."""
    trainer: dict[str, Any] = {}
    """What is wrong with the trainer, see `FakeTrainer`."""
    settings: dict[str, Any] = {}
    """Settings of the trial, see `TrialSettings`."""
    modules: dict[str, dict[str, float]] | None = None
    """It can be compared with float32. "engine" and "trainer": point → the factor by which the output of that side is off."""
    images: bool = False
    """The model takes images."""
    blind: bool = False
    """The engine does not."""
    copies: int = 0
    """Redundant experts, which it moves when it is asked to."""
    narrow: bool = False
    """Both sides say that they compute in bfloat16."""


def run_trial_case(table: Mapping[str, Any], folder: Path, say: Log = lambda _: None) -> RefitTrace:
    """Play the trial of a case. say: gets what the user would read."""
    case = msgspec.convert(table, TrialCase)
    folder.mkdir(exist_ok=True)
    # msgspec refuses an unknown kind of fault, and the dataclass an unknown key.
    faults = [Fault(**fault) for fault in table.get("faults", [])]
    started: list[bool] = []
    accepts = iter(case.accepts)

    def start(checkpoint: Path) -> Engine:
        """Start the engine; the first one has the faults, those that give the reference have none."""
        own = [] if started else faults
        started.append(True)
        tensors = load_file(checkpoint / "model.safetensors")
        kind = (
            partial(BalancingFakeEngine, copies=case.copies)
            if case.copies
            else ReceivingEngine
            if case.receives
            else SeeingFakeEngine
            if case.images and not case.blind
            else FakeEngine
        )
        engine = kind(
            tensors, own, ranks=case.ranks, draft=case.draft, device=case.device, empty=case.empty, scratch=case.scratch,
            calibrated=case.calibrated,
        )  # fmt: skip
        if (own_draft := find_draft_folder(checkpoint)) is not None:
            engine.write_draft(load_file(Path(own_draft) / "model.safetensors"))
        if case.settings.get("pause") or case.flaws is not None:
            engine = FakeServing(tensors, case.flaws or ())
            engine.faults = tuple(own)
        if case.accepts:
            engine.info = replace(engine.info, facts={**engine.info.facts, "draft": case.drafts})
            engine.acceptance_length = lambda *_: next(accepts)  # type: ignore[attr-defined]
        if case.speculates:
            engine.info = replace(engine.info, facts={**engine.info.facts, "follows": "False"})
            engine.score_by_decode = refuse_forced_decoding  # type: ignore[method-assign]
        if case.version is not None:
            name, version = case.version
            engine.info = replace(engine.info, name=name, version=version)
        if case.modules is not None:
            engine.capture_activations = CapturedModules(case.modules.get("engine", {}), 1).capture_activations  # type: ignore[method-assign]
        if case.narrow:
            engine.info = replace(engine.info, dtype="bfloat16")
        return engine

    trainer = FakeTrainer(folder, **case.trainer)
    if case.narrow:
        trainer.info = replace(trainer.info, dtype="bfloat16")
    if case.modules is not None:
        trainer.capture_activations = CapturedModules(case.modules.get("trainer", {}), 2).capture_activations  # type: ignore[attr-defined]
    oracle = CapturedModules({}, 0)
    (folder / "source").mkdir()
    save_file(weights(), folder / "source" / "model.safetensors")
    settings = TrialSettings(**{"bucket_bytes": 1000, "second_bucket_bytes": 300, "decode": 4, **case.settings})
    draft = None
    if case.sends_draft:
        (folder / "drafting").mkdir()
        save_file({name: values / 2 for name, values in weights().items()}, folder / "drafting" / "model.safetensors")
        (folder / "drafting" / "config.json").write_text("{}", encoding="utf-8")
        draft = DraftWeights(open_checkpoint(str(folder / "drafting")), is_own_model=True, exchange=folder)
    block = 4 if case.cache else 0
    return RefitTrial(
        "trial", lambda: trainer, start, settings, vocabulary=VOCABULARY, block=block, length=case.length, folder=folder,
        source=open_checkpoint(str(folder / "source")), start_oracle=lambda _: oracle if case.modules is not None else None,
        draft=draft, image_token=1 if case.images else None, say=say,
    ).run()  # fmt: skip


def make_trial_state(weights: tuple[Weight, ...] = ()) -> TrialState:
    """Return the state of a trial that nothing was started for."""

    def start(checkpoint: Path) -> Engine:
        raise AssertionError(f"nothing is started here from {checkpoint}")

    inputs = ScoringInputs.for_trial(VOCABULARY, 0, TrialTokenizer(), 4)
    phases = TrialPhases(Timeouts(), 0, lambda _: None)
    return TrialState(TrialSettings(), phases, RefitTrace("trial", weights=weights), inputs, start, Path())
