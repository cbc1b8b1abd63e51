"""The settings of a generation_config.json that transformers and vLLM refuse at each request.

Source: transformers 5.24, generation/logits_process.py; vLLM, sampling_params.py (`SamplingParams._verify_args`); vLLM's server
fills the gaps of a request from this file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from ckptcheck.checkpoint.document import clip

REQUESTS = ("repetition_penalty", "temperature", "top_k", "top_p", "min_p", "num_beams")
"""Settings that apply to every request that does not set them."""
TRANSFORMERS, VLLM, BOTH = (
    "transformers refuses to generate",
    "vLLM refuses every request",
    "transformers and vLLM refuse to generate",
)


def list_refused_at_request(settings: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the key of each setting with which no text is generated, why, and who refuses it."""
    samples = settings.get("do_sample") is True
    for key, value in settings.items():
        if value is None or key not in REQUESTS:
            continue
        if not _is_number(value):
            if key != "num_beams":
                # transformers ignores the other settings when it decodes greedily
                is_read = samples or key == "repetition_penalty"
                yield key, f"is {_write(value)}, and no number", BOTH if is_read else VLLM
            continue
        if key == "repetition_penalty" and value != 1 and not (isinstance(value, float) and value > 0):
            yield key, f"is {_write(value)}, and no fraction above 0", BOTH if value <= 0 else TRANSFORMERS
        elif key == "temperature" and value < 0:
            yield key, f"is {_write(value)}, which is below 0", BOTH if samples else VLLM
        elif key == "temperature" and value > 2:
            yield key, f"is {_write(value)}, and vLLM takes at most 2", VLLM
        elif key == "temperature" and samples and value != 1 and not (isinstance(value, float) and value > 0):
            yield key, f"is {_write(value)}, and no fraction above 0", TRANSFORMERS
        elif key == "top_k" and (value < -1 or not isinstance(value, int)):
            yield key, f"is {_write(value)}, and no number of tokens", BOTH if samples else VLLM
        elif key == "top_k" and samples and value == -1:
            yield key, "is -1, which only vLLM takes for all tokens", TRANSFORMERS
        elif key == "top_p" and not 0 < value <= 1:
            yield key, f"is {_write(value)}, and no share above 0", BOTH if samples and value < 0 else VLLM
        elif key == "min_p" and not 0 <= value <= 1:
            yield key, f"is {_write(value)}, and no share", BOTH if samples else VLLM
        elif key == "num_beams" and value < 1:
            yield key, f"is {_write(value)}, and a search needs at least one beam", TRANSFORMERS


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float))


def _write(value: Any) -> str:
    return clip(repr(value), 40)
