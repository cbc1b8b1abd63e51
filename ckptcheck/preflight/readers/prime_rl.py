"""prime-rl: TOML, in one file or one each for trainer, orchestrator and inference, and ``--a.b value`` after ``rl @ FILE``.

Names and defaults: src/prime_rl/configs of PrimeIntellect-ai/prime-rl, in the layouts before and after ``inference.vllm``.
prime-rl asks vLLM for processed logprobs and computes its own at the temperature of each rollout; the engine's logprobs
are the old ones of its ratio. Weights change in flight; requests carry a cache salt, so that no prefix of older weights
is found (``use_prefix_cache_salt``).
"""

from __future__ import annotations

import re

from ckptcheck.preflight.document import Document
from ckptcheck.preflight.engine_flags import arguments_below, take
from ckptcheck.preflight.framework import Framework, Source, dtype
from ckptcheck.preflight.interpolation import look
from ckptcheck.preflight.job import Job, Setting

PRIME = "prime-rl"
SAMPLING = ("orchestrator.train.sampling", "orchestrator.sampling")


def _sampled(name: str) -> tuple[str, ...]:
    return tuple(f"{section}.{name}" for section in SAMPLING)


SOURCES = {
    "trainer.backend": Source((), "fsdp", PRIME),
    "trainer.dtype": Source((), "bfloat16", PRIME),
    "trainer.tp": Source(("trainer.model.tp",), 1, PRIME),
    "trainer.ep": Source(("trainer.model.ep",), 1, PRIME),
    "trainer.cp": Source(("trainer.model.cp",), 1, PRIME),
    "trainer.temperature": Source(_sampled("temperature"), 1.0, PRIME),
    "trainer.max_length": Source(("trainer.model.seq_len", "seq_len"), 2048, PRIME),
    "engine.name": Source((), "vllm", PRIME),
    "engine.tp": Source(("inference.parallel.tp",), 1, PRIME),
    "engine.dtype": Source(("inference.model.dtype",), "auto", PRIME, dtype),
    "engine.max_model_len": Source(("inference.model.max_model_len", "max_model_len")),
    "engine.logprobs": Source((), "processed", PRIME),
    "engine.prefix_caching": Source(("inference.enable_prefix_caching",)),
    "engine.fp32_head": Source(("inference.enable_fp32_lm_head",)),
    "rollout.temperature": Source(_sampled("temperature"), 1.0, PRIME),
    "rollout.top_p": Source((*_sampled("top_p"), *_sampled("extra_body.top_p")), 1.0, PRIME),
    "rollout.top_k": Source((*_sampled("top_k"), *_sampled("extra_body.top_k")), -1, PRIME),
    "rollout.response_length": Source((*_sampled("max_completion_tokens"), *_sampled("max_tokens"))),
    "rollout.n": Source(
        ("orchestrator.group_size", "orchestrator.train.group_size", "orchestrator.rollouts_per_example")
    ),
    "rollout.logprobs": Source((), True, PRIME),
    "update.in_flight": Source((), True, PRIME),
    "algorithm.uses_rollout_logprobs": Source((), True, PRIME),
    "algorithm.correction": Source((), "policy ratio", PRIME),
    "algorithm.lag": Source(
        ("orchestrator.max_off_policy_steps", "orchestrator.max_async_level", "max_async_level"), 1, PRIME
    ),
    "batch.train": Source(("orchestrator.batch_size",)),
    "checkpoint.model": Source(("inference.model.name", "model.name")),
    "checkpoint.trainer": Source(("trainer.model.name",)),
}
SALTS = ("orchestrator.use_prefix_cache_salt", "orchestrator.experimental.use_prefix_cache_salt")
RESET = "inference.reset_prefix_cache_after_update"


def _finish(job: Job, document: Document) -> None:
    for section in ("inference.vllm", "inference.vllm_extra", "inference.vllm_args"):
        take(job, "vllm", arguments_below(document.leaves, lambda path: look(document, path), section))
    salt = next((found for path in SALTS if (found := look(document, path)) is not None), None)
    reset = look(document, RESET)
    if salt is not None and salt.value is False and not (reset is not None and reset.value is True):
        job.settings["update.clears_cache"] = Setting(False, "set", "", salt.leaf)
    else:
        job.settings["update.clears_cache"] = Setting(True, "default", f"default of {PRIME}: a cache salt")


FRAMEWORK = Framework(
    name="prime-rl",
    title=PRIME,
    style="dotted",
    sources=SOURCES,
    signs=(("orchestrator", "trainer"), ("orchestrator", "inference"), ("orchestrator", "model")),
    launches=re.compile(r"(^|\s)(\S*/)?rl\s+(@|--trainer|--orchestrator|--inference)|prime_rl\.\S*rl\b|\brl\.py\s+@"),
    finish=_finish,
)
PARTS = {"train": "trainer", "orch": "orchestrator", "infer": "inference"}
"""How the files of a job in several parts begin: train.toml, orch.toml, infer.toml."""
