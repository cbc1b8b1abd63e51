"""Runs inside an engine's interpreter: which quantization its own ModelConfig makes of folders. Says it as JSON in a file.

Arguments: the engine, a file for the answers, folders. Answers: "known", "plain" or "refused" for each.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ.update(VLLM_LOGGING_LEVEL="ERROR", SGLANG_USE_CPU_ENGINE="1", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")


def made(engine: str, folder: str) -> Any:
    if engine == "vllm":
        from vllm.config import ModelConfig

        return ModelConfig(model=folder, tokenizer=folder, skip_tokenizer_init=True, dtype="bfloat16").quantization
    from sglang.srt.configs.model_config import ModelConfig as Config

    return Config(folder).quantization


def answer(engine: str, folder: str) -> str:
    try:
        return "known" if made(engine, folder) else "plain"
    except (ValueError, AttributeError) as error:
        known = ("Unknown ModelOpt quant algo", "Unknown quantization method: .", "has no attribute 'get'", "'lower'")
        return "refused" if any(words in str(error) for words in known) else f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    engine, out, *folders = sys.argv[1:]
    answers = [answer(engine, folder) for folder in folders]
    with open(out, "w", encoding="utf-8") as file:
        json.dump(answers, file)
