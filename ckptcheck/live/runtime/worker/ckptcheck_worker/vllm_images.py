"""Images in vLLM: one image, always the same, and vLLM's cache of it. Read against vLLM 0.32.0.

GPUModelRunner caches the vision tower's output under a hash of the image (`encoder_cache`). `reload_weights` drops it;
an update by the weight-transfer API does not.
"""

from __future__ import annotations

import json
import os
from typing import Any

PROCESSORS = ("processor_config.json", "preprocessor_config.json")
"""Files that tell transformers how to prepare an image: a model has one of them."""
SIZE = 56
"""Pixels of each side of the image."""


def takes_images(model: str) -> bool:
    """Return whether a checkpoint is of a model that takes images, and has the files that prepare them."""
    with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    has_token = "image_token_id" in config or "image_token_index" in config
    has_processor = any(os.path.isfile(os.path.join(model, name)) for name in PROCESSORS)
    return has_token and "vision_config" in config and has_processor


def engine_arguments(model: str) -> dict[str, Any]:
    """Return the further arguments of LLM() for a model that takes images: its tokenizer, and one image a request."""
    return {"skip_tokenizer_init": False, "limit_mm_per_prompt": {"image": 1}} if takes_images(model) else {}


def facts(config: Any) -> dict[str, str]:
    """Return whether this engine was started for images; {} for a model that takes none."""
    model = config.model_config
    if not getattr(model, "is_multimodal_model", False):
        return {}
    if not takes_images(model.model):
        return {
            "images": f"the checkpoint has neither {PROCESSORS[0]} nor {PROCESSORS[1]}, or names no token for an image"
        }
    return {"images": "True"}


def score_image(llm: Any, tokens: list[int]) -> list[float]:
    """Return the logprobs of the tokens after the first one, which stands for the image."""
    from vllm import SamplingParams

    prompt = {"prompt_token_ids": tokens, "multi_modal_data": {"image": _draw_image()}}
    settings = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0, detokenize=False)
    try:
        request = llm.generate([prompt], [settings], use_tqdm=False)[0]
    except RuntimeError:
        # a request that failed would be scheduled again beside the next one
        llm.llm_engine.abort_request([*llm.llm_engine.output_processor.request_states], internal=True)
        raise
    rows = list(zip(request.prompt_token_ids, request.prompt_logprobs))
    return [row[token].logprob for token, row in rows[1 - len(tokens) :]]


def reset_encoder_cache(llm: Any) -> None:
    """Drop the outputs of the vision tower that the engine caches."""
    llm.llm_engine.reset_encoder_cache()


def _draw_image() -> Any:
    import numpy
    from PIL import Image

    return Image.fromarray(numpy.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), dtype=numpy.uint8))
