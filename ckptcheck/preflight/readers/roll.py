"""ROLL: YAML with Hydra, started with ``--config_path`` and ``--config_name``.

Names and defaults: examples of alibaba/ROLL at 8eb27cc2, ``roll/configs/generating_args.py`` and
``roll/distributed/strategy/vllm_strategy.py``. At which temperature its trainer computes logprobs is in no configuration.
"""

from __future__ import annotations

import re

from ckptcheck.preflight.document import Document
from ckptcheck.preflight.engine_flags import arguments_below, take
from ckptcheck.preflight.framework import Framework, Source, default, dtype, set_to
from ckptcheck.preflight.interpolation import look
from ckptcheck.preflight.job import Job, Setting

TRAIN, INFER = "actor_train", "actor_infer"
STRATEGY, ENGINE = f"{TRAIN}.strategy_args.strategy_config", f"{INFER}.strategy_args.strategy_config"
GENERATING = f"{INFER}.generating_args"
ROLL = "ROLL"
OWN_ARGUMENTS = frozenset(("engine_mode", "pending_size", "sleep_level", "resource_placement_groups"))


def _backend(value: object) -> object:
    name = str(value).removesuffix("_train").removesuffix("_infer")
    return "fsdp" if name.startswith("fsdp") else name


def _lag(value: object) -> object:
    return value if isinstance(value, (int, float)) else None


def _correction(value: object) -> object:
    return "is_weight" if value is True else "none"


SOURCES = {
    "trainer.backend": Source((f"{TRAIN}.strategy_args.strategy_name",), read=_backend),
    "trainer.dtype": Source((f"{TRAIN}.model_args.dtype",), read=dtype),
    "trainer.tp": Source((f"{STRATEGY}.tensor_model_parallel_size",)),
    "trainer.pp": Source((f"{STRATEGY}.pipeline_model_parallel_size",)),
    "trainer.ep": Source((f"{STRATEGY}.expert_model_parallel_size",)),
    "trainer.cp": Source((f"{STRATEGY}.context_parallel_size",)),
    "trainer.attention_backend": Source((f"{STRATEGY}.attention_backend",)),
    "trainer.moe_permute_fusion": Source((f"{STRATEGY}.moe_permute_fusion",)),
    "trainer.router_bias_update_rate": Source((f"{STRATEGY}.moe_router_bias_update_rate",)),
    "trainer.max_length": Source(("sequence_length",)),
    "engine.name": Source((f"{INFER}.strategy_args.strategy_name",)),
    "engine.dtype": Source((f"{INFER}.model_args.dtype",), "auto", ROLL, dtype),
    "engine.sleep_level": Source((f"{ENGINE}.sleep_level",), 1, ROLL),
    "rollout.temperature": Source((f"{GENERATING}.temperature",), 0.95, ROLL),
    "rollout.top_p": Source((f"{GENERATING}.top_p",), 0.7, ROLL),
    "rollout.top_k": Source((f"{GENERATING}.top_k",), 50, ROLL),
    "rollout.prompt_length": Source(("prompt_length",), 1024, ROLL),
    "rollout.response_length": Source((f"{GENERATING}.max_new_tokens", "response_length")),
    "rollout.n": Source(("num_return_sequences_in_group", f"{GENERATING}.num_return_sequences")),
    "algorithm.correction": Source(("train_infer_correction.is_weight.enabled",), "none", ROLL, _correction),
    "algorithm.lag": Source(("async_generation_ratio",), 0, ROLL, _lag),
    "batch.train": Source(("rollout_batch_size",)),
    "checkpoint.model": Source((f"{INFER}.model_args.model_name_or_path", "pretrain")),
    "checkpoint.trainer": Source((f"{TRAIN}.model_args.model_name_or_path",)),
}
DEVICES = re.compile(r"list\(range\((\d+),\s*(\d+)\)\)")


def _finish(job: Job, document: Document) -> None:
    if job.engine in ("vllm", "sglang"):
        take(
            job,
            job.engine,
            arguments_below(document.leaves, lambda path: look(document, path), ENGINE),
            beside=OWN_ARGUMENTS,
        )
        if job.engine == "vllm":
            default(job, "engine.prefix_caching", True, ROLL)
    if (job.number("trainer.ep") or 1) > 1:
        set_to(job, "trainer.moe", True, job["trainer.ep"])
    prompt, response = job.number("rollout.prompt_length"), look(document, "response_length")
    if (
        job["trainer.max_length"].status == "unknown"
        and prompt
        and response is not None
        and isinstance(response.value, int)
    ):
        job.settings["trainer.max_length"] = Setting(prompt + response.value, "set", "", response.leaf)
    devices = look(document, f"{TRAIN}.device_mapping")
    if devices is not None and (found := DEVICES.fullmatch(str(devices.value))):
        job.settings["trainer.world"] = Setting(max(0, int(found[2][:9]) - int(found[1][:9])), "set", "", devices.leaf)
    uses = job.text("algorithm.correction") != "none"
    set_to(job, "algorithm.uses_rollout_logprobs", uses, job["algorithm.correction"])


FRAMEWORK = Framework(
    name="roll",
    title=ROLL,
    style="hydra",
    sources=SOURCES,
    signs=(("actor_train", "actor_infer"),),
    launches=re.compile(r"\bstart_\w*pipeline\.py\b"),
    finish=_finish,
)
