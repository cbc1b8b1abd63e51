"""Takes the sampling parameters that requests leave out from the model's generation_config.json, as vLLM's server does.

Source: vLLM's ``ModelConfig.get_diff_sampling_param``; ``--generation-config auto`` is the default since 0.8.0
(vllm-project/vllm#12622).
"""

from __future__ import annotations

from ckptcheck.jobs.document import Leaf
from ckptcheck.jobs.job import Job, Setting

NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": 0.0, "min_p": 0.0, "repetition_penalty": 1.0}
"""The parameters that vLLM takes from generation_config.json → the value at which each changes nothing."""
FILE = "generation_config.json"


def apply_model_defaults(job: Job) -> None:
    """Set the sampling parameters that the job's requests leave out to those of its model, where vLLM takes them from it."""
    if not takes_model_defaults(job):
        return
    checkpoint = job.checkpoints.get("checkpoint.model")
    if checkpoint is None or checkpoint.sampling is None:
        return
    for name, neutral in NEUTRAL.items():
        value = checkpoint.sampling.get(name)
        if value is None or job[f"rollout.{name}"].status in ("set", "unresolved"):
            continue
        is_neutral = value == neutral or (name == "top_k" and value <= 0)
        if not is_neutral:
            leaf = Leaf(value, name, f"{checkpoint.named}/{FILE}")
            job.settings[f"rollout.{name}"] = Setting(value, "set", "", leaf)


def takes_model_defaults(job: Job) -> bool:
    """Return whether the engine fills what the job's requests leave out from the model's generation_config.json."""
    return (
        job.engine == "vllm"
        and job.flag("rollout.from_engine") is True
        and job.text("engine.generation_config") == "auto"
    )
