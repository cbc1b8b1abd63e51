"""Runs in SGLang's interpreter: serves a checkpoint and scores a prompt with it.

What no tensor of the checkpoint fills would hold whatever was in memory. To see it, all parameters are poisoned before SGLang
loads the weights, and those that are poisoned still are told. SGLang kills its caller when it cannot load: a host for each.
"""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any

UNFILLED = "CKPTCHECK_UNFILLED"
os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="2")


def serve(folder: str, tokens: list[int]) -> dict[str, Any]:
    """Return the logprobs of the tokens after the first, None for NaN, and the parameters that nothing filled."""
    import sglang
    from ckptcheck_far import sglang_plugins

    private = tempfile.mkdtemp(dir=os.getcwd())
    os.environ[UNFILLED] = os.path.join(private, "unfilled.json")
    sglang_plugins.offer(
        private, {"integers": "ckptcheck_far.sglang_int:register", "poison": f"{__name__}:register"}
    )
    engine = sglang.Engine(
        model_path=folder, device="cpu", dtype="float32", skip_tokenizer_init=True, context_length=128,
        max_total_tokens=512, max_running_requests=1, attention_backend="torch_native", sampling_backend="pytorch",
        grammar_backend="none", disable_cuda_graph=True, disable_overlap_schedule=True, disable_radix_cache=True,
        log_level="warning",
    )  # fmt: skip
    try:
        wanted = {"temperature": 0, "max_new_tokens": 1, "ignore_eos": True}
        answer = engine.generate(input_ids=tokens, sampling_params=wanted, return_logprob=True, logprob_start_len=0)
        scored = [value for value, _, _ in answer["meta_info"]["input_token_logprobs"][1:]]
        with open(os.environ[UNFILLED], encoding="utf-8") as file:
            unfilled = json.load(file)
        return {"logprobs": [None if value != value else value for value in scored], "unfilled": unfilled}
    finally:
        engine.shutdown()


def register() -> None:
    """Have SGLang's loader say which parameters it fills. Runs in each of SGLang's processes."""
    from sglang.srt.model_loader.loader import DefaultModelLoader

    load = DefaultModelLoader.load_weights_only

    def watched(model: Any, weights: Any, target_device: Any) -> None:
        import torch

        poison = {torch.int32: -0x21524111, torch.int64: -0x21524111}
        held = {name: poison.get(param.dtype, float("nan")) for name, param in model.named_parameters()}
        with torch.no_grad():
            for name, param in model.named_parameters():
                param.fill_(held[name])
        load(model, weights, target_device)
        left = [name for name, param in model.named_parameters() if bool(_same(param, held[name]).any())]
        with open(os.environ[UNFILLED], "w", encoding="utf-8") as file:
            json.dump(left, file)

    DefaultModelLoader.load_weights_only = staticmethod(watched)


def _same(param: Any, value: float) -> Any:
    return param.isnan() if value != value else param == value


VERBS = {"serve": serve}
