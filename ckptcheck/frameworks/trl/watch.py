"""Watches the weights that a trainer of TRL sends to vLLM."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from functools import wraps
from typing import Any, TypeVar

from ckptcheck.errors import CkptcheckError
from ckptcheck.watch.interface import Interface
from ckptcheck.watch.passing import count_steps, replaced
from ckptcheck.watch.probe import Probe, Score, fixed_sequences, score_with_transformers, score_with_vllm
from ckptcheck.watch.trainer_side import TrainerSide
from ckptcheck.watch.watch import Watch

T = TypeVar("T")
INTERFACE = Interface("TRL", "2026-07-24", "1.16.0", {"sync_weights": ()})
"""Of `VLLMGeneration`."""
ENGINE_CORE = ("llm", "llm_engine", "engine_core", "engine_core")
"""The path to the core of a vLLM in this process: that of ``VLLM_ENABLE_V1_MULTIPROCESSING=0``."""
DRAWN = 16
"""Tokens that a probe draws."""


def trl(trainer: T, watch: Watch) -> T:
    """Watch the weights that a trainer of TRL (GRPO, RLOO) sends to vLLM: ``VLLMGeneration.sync_weights``.

    Call it on every rank, with a watch that is enabled on rank 0. The step is the trainer's global step. Before 1.11 TRL pushes
    parameter by parameter; since then it walks them, and at the first sync with a server once more before, to learn their shapes.
    """
    owner: Any = trainer
    generation: Any = getattr(owner, "vllm_generation", None)
    if not INTERFACE.check(generation):
        return trainer
    synchronize, next_step = generation.sync_weights, count_steps()
    own, synced = _find_trainer_side(generation, watch), list[int]()
    watch.may_look_before = getattr(generation, "mode", "") == "colocate" and not getattr(
        generation, "enable_sleep_mode", True
    )
    walk = getattr(generation, "_iter_named_params", None)
    push = getattr(generation, "_push_param_to_vllm", None)

    @wraps(synchronize)
    def watched(*arguments: Any, **keywords: Any) -> Any:
        number, step = next_step(), getattr(getattr(owner, "state", None), "global_step", None)
        synced[:] = [number if step is None else int(step)]
        with watch(step=synced[0]) as sync:
            if own is not None:
                sync.trained_by(own.begin())
            shown: dict[str, Any] = {}
            if walk is not None:
                shown["_iter_named_params"] = lambda: walk() if _learns_shapes(generation) else sync.sent(walk())
            elif push is not None:
                shown["_push_param_to_vllm"] = lambda name, param: (sync.sent([(name, param)]), push(name, param))
            else:
                sync.unseen("this version of TRL has neither _iter_named_params nor _push_param_to_vllm")
            with replaced(generation, **shown):
                result = synchronize(*arguments, **keywords)
            if watch.enabled:
                with suppress(Exception):
                    sync.suspect(*find_suspects(owner))
            return result

    generation.sync_weights = watched
    if watch.enabled:
        # an older TRL or vLLM, or a server without dev mode: limits are then those of bfloat16
        with suppress(Exception):
            watch.dtype = find_dtype(owner)
    _watch_rollouts(owner, generation, watch, synced)
    return trainer


def find_dtype(trainer: Any) -> str:
    """Return the dtype in which both sides compute: the narrower one; "" where the engine's is not known."""
    generation = trainer.vllm_generation
    engine = getattr(_find_config(generation, "model_config"), "dtype", None)
    if engine is None and getattr(generation, "vllm_client", None) is not None:
        engine = generation.vllm_client.get_server_info()["model_config"]["dtype"]
    if engine is None:
        return ""
    sides = [str(engine), str(next(trainer.model.parameters()).dtype)]
    sides += [name for name, flag in (("bfloat16", "bf16"), ("float16", "fp16")) if getattr(trainer.args, flag, False)]
    names = [side.removeprefix("torch.") for side in sides]
    return next((name for name in names if name != "float32"), "float32")


def find_suspects(trainer: Any) -> list[str]:
    """Return what lets the logprobs of equal weights differ: settings of the engine, and a prefix cache that is not empty.

    Called right after a sync. vLLM gives processed logprobs as TRL asks for them: after temperature, penalties and top-k.
    """
    generation, found = trainer.vllm_generation, list[str]()
    own = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    settings = {name: getattr(generation, name, None) for name in own} | dict(
        getattr(generation, "generation_kwargs", None) or {}
    )
    ours, theirs = getattr(trainer, "temperature", 1.0), settings["temperature"]
    model = _find_config(generation, "model_config")
    if None not in (ours, theirs) and theirs != ours:
        found.append(f"the engine draws at temperature {theirs:g}, and the trainer computes at {ours:g}")
    if str(getattr(model, "logprobs_mode", "")).startswith("raw") and theirs not in (None, 1):
        found.append(f"the engine gives raw logprobs, and the trainer divides by the temperature {ours:g}")
    for name in ("top_p", "top_k", "min_p", "repetition_penalty"):
        value = settings[name]
        if value not in (None, own[name], -1):
            found.append(f"the engine's logprobs are those after {name} = {value:g}, and the trainer's are not")
    blocks = _find(
        generation, *ENGINE_CORE, "scheduler", "kv_cache_manager", "block_pool", "cached_block_hash_to_block"
    )
    if blocks is not None and len(getattr(blocks, "_cache", blocks)):
        found.append("the engine kept its prefix cache over the sync")
    return found


def build_probe(trainer: Any, every: int) -> Probe:
    """Return the probe of a trainer: fixed sequences that both sides score, and tokens drawn as the job draws them.

    Raises CkptcheckError where this process cannot score alone: sharded weights, several ranks of an engine, or one that sleeps.
    """
    generation, model = trainer.vllm_generation, trainer.accelerator.unwrap_model(trainer.model)
    if getattr(generation, "enable_sleep_mode", False):
        raise CkptcheckError("no probe: with vllm_enable_sleep_mode the engine sleeps where a sync ends")
    if trainer.accelerator.num_processes > 1 or any(parameter.numel() == 0 for parameter in model.parameters()):
        raise CkptcheckError("no probe: it needs the whole model in one process; give Watch a Probe of your own")
    vocabulary = model.config.get_text_config().vocab_size
    longest = getattr(generation, "max_model_length", None) or 4096
    block = getattr(_find_config(generation, "cache_config"), "block_size", None) or 16
    prompt = fixed_sequences(
        vocabulary, number=1, length=max(2, min(2 * block + 1, longest - DRAWN)), first=vocabulary // 8
    )[0]

    def draw() -> tuple[list[float], list[float]]:
        with replaced(generation, max_completion_length=DRAWN):
            _, (tokens,), (theirs,), *_ = generation.generate(prompts=[prompt], images=None, num_generations=1)
        tokens = list(tokens)
        scored = list(score_with_transformers(model, temperature=trainer.temperature)([prompt + tokens])[0])
        return [math.nan if one is None else one for (one, *_) in theirs], scored[len(scored) - len(tokens) :]

    return Probe(
        fixed_sequences(vocabulary, first=vocabulary // 8),
        engine=score_with_vllm(generation.llm)
        if generation.mode == "colocate"
        else _score_with_client(generation.vllm_client),
        trainer=score_with_transformers(model),
        every=every,
        dtype=find_dtype(trainer),
        draw=draw,
    )


def _score_with_client(client: Any) -> Score:
    """Return a function that scores with the server of TRL's client."""

    def score(sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        found = client.get_sequence_logprobs(list(map(list, sequences)), [1] * len(sequences), top_logprobs=1)
        return [[values[0] for values in row] for row in found["actual_logprobs"]]

    return score


def _find_config(generation: Any, name: str) -> Any:
    """Return a part of the configuration of a vLLM in this process, None where there is none."""
    return _find(generation, "llm", "llm_engine", "vllm_config", name)


def _find(owner: Any, *names: str) -> Any:
    for name in names:
        owner = getattr(owner, name, None)
    return owner


def _find_trainer_side(generation: Any, watch: Watch) -> TrainerSide | None:
    """Return the model that TRL walks."""
    found: list[TrainerSide] = []
    if watch.enabled and hasattr(getattr(generation, "model", None), "named_parameters"):
        watch.attempt("read the trainer's parameters", lambda: found.append(TrainerSide(generation.model)))
    return found[0] if found else None


def _watch_rollouts(trainer: Any, generation: Any, watch: Watch, synced: list[int]) -> None:
    """Note rollouts that begin at another step than the last sync. synced: the step of that sync, if there was one.

    TRL syncs before the rollouts of each new step (`GRPOTrainer._generate_single_turn`), and with sleep mode within its `generate`.
    """
    often = max(1, getattr(trainer, "vllm_sync_frequency", 1))  # GOLD syncs at each n-th step
    engine: Any = getattr(generation, "llm" if getattr(generation, "mode", "") == "colocate" else "vllm_client", None)
    generate, noted = getattr(engine, "generate", None), list[int]()
    if generate is None:
        return

    @wraps(generate)
    def watched(*arguments: Any, **keywords: Any) -> Any:
        step = getattr(getattr(trainer, "state", None), "global_step", None)
        if step is not None and synced and not 0 <= int(step) - synced[0] < often and int(step) not in noted[-1:]:
            noted.append(int(step))
            watch.note_missing(int(step))
        return generate(*arguments, **keywords)

    engine.generate = watched


def _learns_shapes(generation: Any) -> bool:
    """Return whether TRL walks the parameters only for their names and shapes, which it does once for a server."""
    return generation.mode == "server" and getattr(generation, "_weight_metadata", ()) is None
