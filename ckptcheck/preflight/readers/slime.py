"""slime (and miles): a shell script whose arrays of ``--flags`` go to train.py or train_async.py.

Flags are slime's own, Megatron's, and SGLang's with ``--sglang-`` before them. Names and defaults:
``slime/utils/arguments.py`` of THUDM/slime, Megatron's arguments. slime divides its own logits by the rollout's
temperature (vllm-project/vime#64), and pauses and flushes SGLang at every update.
"""

from __future__ import annotations

import re

from ckptcheck.preflight.document import Document
from ckptcheck.preflight.engine_flags import take
from ckptcheck.preflight.framework import Framework, Source, count_gpus, environment_flag, names, nearest, set_to
from ckptcheck.preflight.interpolation import Found, look
from ckptcheck.preflight.job import Job, Setting, Unread

SLIME, MEGATRON = "slime", "Megatron"


def _half(value: object) -> object:
    return "float16" if value is True else "bfloat16"


def _some(value: object) -> object:
    return value not in (None, 0, False, "none")


SOURCES = {
    "trainer.backend": Source(("train_backend",), "megatron", SLIME),
    "trainer.dtype": Source(("fp16",), "bfloat16", SLIME, _half),
    "trainer.tp": Source(("tensor_model_parallel_size",), 1, MEGATRON),
    "trainer.pp": Source(("pipeline_model_parallel_size",), 1, MEGATRON),
    "trainer.ep": Source(("expert_model_parallel_size",), 1, MEGATRON),
    "trainer.cp": Source(("context_parallel_size",), 1, MEGATRON),
    "trainer.temperature": Source(("rollout_temperature",), 1.0, SLIME),
    "trainer.filters": Source((), False, SLIME),
    "trainer.attention_backend": Source(("attention_backend",), "auto", MEGATRON),
    "trainer.moe": Source(("num_experts",), False, MEGATRON, _some),
    "trainer.mla": Source(("multi_latent_attention",), False, MEGATRON),
    "trainer.moe_permute_fusion": Source(("moe_permute_fusion",), False, MEGATRON),
    "trainer.router_bias_update_rate": Source(("moe_router_bias_update_rate",)),
    "trainer.fp8": Source(("fp8_format",), False, MEGATRON, _some),
    "trainer.attention_dropout": Source(("attention_dropout",), 0.1, MEGATRON),
    "trainer.hidden_dropout": Source(("hidden_dropout",), 0.1, MEGATRON),
    "engine.name": Source((), "sglang", SLIME),
    "engine.tp": Source(("rollout_num_gpus_per_engine",), 1, SLIME),
    "engine.max_model_len": Source(("rollout_max_context_len",)),
    "rollout.temperature": Source(("rollout_temperature",), 1.0, SLIME),
    "rollout.top_p": Source(("rollout_top_p",), 1.0, SLIME),
    "rollout.top_k": Source(("rollout_top_k",), -1, SLIME),
    "rollout.n": Source(("n_samples_per_prompt",), 1, SLIME),
    "rollout.prompt_length": Source(("rollout_max_prompt_len",)),
    "rollout.response_length": Source(("rollout_max_response_len",)),
    "rollout.logprobs": Source((), True, SLIME),
    "algorithm.correction": Source(("use_tis",), "none", SLIME, lambda value: "tis" if value is True else "none"),
    "update.pause_mode": Source(("pause_generation_mode",)),
    "batch.train": Source(("rollout_batch_size",)),
    "batch.balance": Source(("balance_data",), False, SLIME),
    "checkpoint.model": Source(("hf_checkpoint",)),
    "checkpoint.trainer": Source(("load", "ref_load")),
}
OWN = frozenset(path for source in SOURCES.values() for path in source.paths) | names("""
    use_rollout_logprobs actor_num_nodes actor_num_gpus_per_node update_weights_interval max_weight_staleness fully_async
""")
IN_MODEL_SCRIPT = ("trainer.moe", "trainer.mla", "trainer.moe_permute_fusion")
"""What slime's scripts/models/*.sh set: unknown where such a file is sourced and not there to be read."""


def _finish(job: Job, document: Document) -> None:
    engine = {
        name.removeprefix("sglang_"): found
        for name in document.leaves
        if name.startswith("sglang_") and (found := look(document, name)) is not None
    }
    take(job, "sglang", engine, beside=frozenset(("router_ip", "router_port", "server_concurrency", "router_policy")))
    for name, leaf in document.leaves.items():
        if not name.startswith("sglang_") and name not in OWN and (near := nearest(name, OWN, 0.93)):
            job.not_understood.append(Unread(leaf, near=f"--{near.replace('_', '-')}"))
    raw = environment_flag(document, "SGLANG_RETURN_ORIGINAL_LOGPROB")
    if raw.known and raw.value is True:
        set_to(job, "engine.logprobs", "raw", raw)
    if job.text("trainer.backend") != "megatron":
        for name in [name for name, setting in job.settings.items() if setting.source == f"default of {MEGATRON}"]:
            del job.settings[name]
    if document.notes:
        for name in [
            *IN_MODEL_SCRIPT,
            "trainer.attention_backend",
            "trainer.attention_dropout",
            "trainer.hidden_dropout",
        ]:
            if job[name].status == "default":
                del job.settings[name]
    if job["trainer.moe"].status != "set" and (job.number("trainer.ep") or 1) > 1:
        set_to(job, "trainer.moe", True, job["trainer.ep"])
    loss, alone = look(document, "loss_type"), look(document, "debug_train_only")
    if (loss is not None and loss.value == "sft_loss") or (
        alone is not None and alone.value is True
    ):  # nothing rolls out
        for name in [
            name for name in job.settings if name.startswith(("engine.", "rollout.", "algorithm.", "update."))
        ]:
            del job.settings[name]
        return
    _update(job, document)
    count_gpus(job, document, ("actor_num_nodes", "actor_num_gpus_per_node"), SLIME)
    old = look(document, "use_rollout_logprobs")
    uses = job.text("algorithm.correction") == "tis" or bool(old and old.value is True)
    set_to(
        job,
        "algorithm.uses_rollout_logprobs",
        uses,
        Setting(uses, "set", "", old.leaf) if old else job["algorithm.correction"],
    )


def _update(job: Job, document: Document) -> None:
    mode = job["update.pause_mode"]
    if mode.known:
        set_to(job, "update.clears_cache", mode.value != "in_place", mode)
        set_to(job, "update.in_flight", mode.value in ("in_place", "retract"), mode)
    else:
        job.settings["update.clears_cache"] = Setting(True, "default", f"default of {SLIME}")
    asynchronous = "train_async" in document.script or look(document, "fully_async") is not None
    bound: Found | None = look(document, "max_weight_staleness")
    if bound is not None and isinstance(bound.value, int):
        job.settings["algorithm.lag"] = Setting(bound.value, "set", "", bound.leaf)
    else:
        job.settings["algorithm.lag"] = Setting(
            int(asynchronous), "default", f"default of {'train_async.py' if asynchronous else SLIME}"
        )


FRAMEWORK = Framework(
    name="slime",
    title="slime",
    style="flags",
    sources=SOURCES,
    signs=(("hf_checkpoint", "rollout_batch_size"), ("hf_checkpoint", "rollout_num_gpus_per_engine")),
    launches=re.compile(
        r"\btrain(_async)?\.py\b.*--(hf-checkpoint|rollout-|sglang-|actor-num|advantage-estimator)", re.DOTALL
    ),
    finish=_finish,
)
