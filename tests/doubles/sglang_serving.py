"""Runs in SGLang's interpreter: serves a checkpoint and scores a prompt, or only loads one after the other.

A parameter that no tensor of the checkpoint fills holds arbitrary memory. To find such parameters, all of them are poisoned before
SGLang's loader begins; those that are still poisoned afterwards are reported. Where the loader raises, SGLang kills its caller and
every process that the caller started.
"""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any

UNFILLED = "CKPTCHECK_UNFILLED"
POISON = -0x21524111
os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="2")


def serve(folder: str, tokens: list[int]) -> dict[str, Any]:
    """Return the logprobs of the tokens after the first, None for NaN, and the parameters that nothing filled."""
    import sglang
    from ckptcheck_worker import sglang_plugins

    private = tempfile.mkdtemp(dir=os.getcwd())
    os.environ[UNFILLED] = os.path.join(private, "unfilled.json")
    sglang_plugins.install_plugins(
        private, {"integers": "ckptcheck_worker.sglang_cpu_kernels:register_integers", "poison": f"{__name__}:register"}
    )
    engine = sglang.Engine(
        **settings(folder), dtype="float32", context_length=128, max_total_tokens=512, max_running_requests=1,
        sampling_backend="pytorch", grammar_backend="none", disable_cuda_graph=True, disable_radix_cache=True,
        log_level="warning",
    )  # fmt: skip
    try:
        sampling = {"temperature": 0, "max_new_tokens": 1, "ignore_eos": True}
        answer = engine.generate(input_ids=tokens, sampling_params=sampling, return_logprob=True, logprob_start_len=0)
        scored = [value for value, _, _ in answer["meta_info"]["input_token_logprobs"][1:]]
        return {"logprobs": [None if value != value else value for value in scored], "unfilled": unfilled()}
    finally:
        engine.shutdown()


def load(folder: str) -> dict[str, Any]:
    """Load a checkpoint with SGLang's loader alone; return the parameters that nothing filled, or what it raised."""
    from ckptcheck_worker import sglang_cpu_kernels
    from sglang.srt import runtime_context
    from sglang.srt.configs.device_config import DeviceConfig
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.distributed import init_distributed_environment, initialize_model_parallel
    from sglang.srt.layers.dp_attention import initialize_dp_attention_flags
    from sglang.srt.model_loader import get_model
    from sglang.srt.server_args import ServerArgs

    first = UNFILLED not in os.environ
    os.environ[UNFILLED] = os.path.join(os.getcwd(), "unfilled.json")
    args = ServerArgs(**settings(folder), dtype="float32")
    runtime_context.publish(args, role="scheduler", ranks=runtime_context.SpawnRanks(world_rank=0, gpu_id=0))
    if first:
        sglang_cpu_kernels.register_integers()
        register()
        init_distributed_environment(1, 0, f"file://{os.getcwd()}/meeting", 0, backend="gloo")
        initialize_model_parallel()
    initialize_dp_attention_flags(args)
    try:
        get_model(
            model_config=ModelConfig.from_server_args(args),
            load_config=LoadConfig(),
            device_config=DeviceConfig("cpu"),
        )
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"unfilled": unfilled()}


def settings(folder: str) -> dict[str, Any]:
    return {
        "model_path": folder, "device": "cpu", "skip_tokenizer_init": True, "attention_backend": "torch_native",
        "disable_overlap_schedule": True,
    }  # fmt: skip


def unfilled() -> list[str]:
    with open(os.environ[UNFILLED], encoding="utf-8") as file:
        return list(json.load(file))


def register() -> None:
    """Have SGLang's loader write down which parameters it does not fill. Runs in each of SGLang's processes."""
    from sglang.srt.model_loader.loader import DefaultModelLoader

    loads = DefaultModelLoader.load_weights_only

    def watched(model: Any, weights: Any, target_device: Any) -> None:
        import torch

        parameters = dict(model.named_parameters())
        with torch.no_grad():
            for parameter in parameters.values():
                parameter.fill_(float("nan") if parameter.is_floating_point() else POISON)
        loads(model, weights, target_device)
        unfilled_names = [name for name, parameter in parameters.items() if bool(poisoned(parameter).any())]
        with open(os.environ[UNFILLED], "w", encoding="utf-8") as file:
            json.dump(unfilled_names, file)

    DefaultModelLoader.load_weights_only = staticmethod(watched)


def poisoned(parameter: Any) -> Any:
    return parameter.isnan() if parameter.is_floating_point() else parameter == POISON


RPC_METHODS = {"serve": serve, "load": load}
