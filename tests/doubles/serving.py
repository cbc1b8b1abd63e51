"""Runs in vLLM's interpreter: loads one checkpoint after the other and scores a prompt with each."""

from __future__ import annotations

import os
from typing import Any

os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", TORCHDYNAMO_DISABLE="1", VLLM_LOGGING_LEVEL="ERROR",
    VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1",
)  # fmt: skip


def serve(folder: str, tokens: list[int]) -> dict[str, Any]:
    """Return the logprobs of the tokens after the first, or what vLLM raised."""
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory

    llm = None
    try:
        llm = LLM(folder, skip_tokenizer_init=True, enforce_eager=True, max_model_len=128, dtype="bfloat16")
        sampling = SamplingParams(detokenize=False, max_tokens=1, prompt_logprobs=0, temperature=0)
        output = llm.generate([{"prompt_token_ids": tokens}], sampling, use_tqdm=False)[0]
        return {"logprobs": [next(iter(row.values())).logprob for row in output.prompt_logprobs[1:]]}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        if llm is not None:
            llm.llm_engine.engine_core.shutdown()
        cleanup_dist_env_and_memory()


RPC_METHODS = {"serve": serve}
