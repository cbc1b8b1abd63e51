"""Which settings of a generation_config.json transformers refuses with the model, or transformers and vLLM with each request.

Source: transformers 5.24, generation/configuration_utils.py (`GenerationConfig.validate`) and generation/logits_process.py; vLLM,
sampling_params.py (`SamplingParams._verify_args`), whose server takes what a request leaves out from this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeGuard

from ckptcheck.checkpoint.document import clip

CACHES = (
    "static", "offloaded_static", "sliding_window", "hybrid", "hybrid_chunked", "offloaded_hybrid", "offloaded_hybrid_chunked",
    "dynamic", "offloaded", "quantized", "paged",
)  # fmt: skip
"""What transformers takes as `cache_implementation`."""
NEVER = "never"
"""The word that `early_stopping` may be."""
TRANSFORMERS, VLLM, BOTH = (
    "transformers refuses to generate",
    "vLLM refuses every request",
    "transformers and vLLM refuse to generate",
)


def list_refused_at_load(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the key of each setting with which transformers does not load the model, and why, as the end of a sentence."""
    most = settings.get("max_new_tokens")
    if most is not None and not (_is_number(most) and most > 0):
        yield "max_new_tokens", f"is {_write(most)}, and no number above 0"
    stopping = settings.get("early_stopping")
    if stopping is not None and stopping != NEVER and not (_is_number(stopping) and stopping in (0, 1)):
        yield "early_stopping", f'is {_write(stopping)}, and neither true, false nor "{NEVER}"'
    cache = settings.get("cache_implementation")
    if cache is not None and cache not in CACHES:
        yield "cache_implementation", f"is {_write(cache)}, and transformers has no such cache"
    if (compiled := settings.get("compile_config")) is not None:
        yield "compile_config", f"is {_write(compiled)}, and only a program can give one"
    marking = settings.get("watermarking_config")
    if marking is not None and not isinstance(marking, dict):
        yield "watermarking_config", f"is {_write(marking)}, and no object"
    answers, beams = settings.get("num_return_sequences"), settings.get("num_beams")
    if _is_number(answers) and answers > 1:
        if beams in (None, 1):
            if not settings.get("do_sample"):
                yield "num_return_sequences", f"is {_write(answers)}, but the model neither samples nor has beams"
        elif _is_number(beams) and answers > beams:
            yield "num_return_sequences", f"is {_write(answers)}, which is more than the {_write(beams)} beams"


def list_refused_at_request(settings: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the key of each setting with which no text is generated, why, and who refuses it."""
    samples = settings.get("do_sample") is True
    for key, value in settings.items():
        if value is None or key not in REQUESTS:
            continue
        if not _is_number(value):
            if key != "num_beams":
                yield key, f"is {_write(value)}, and no number", BOTH if samples else VLLM
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
    for key, (is_valid, kind) in (OTHERS | SAMPLING if samples else OTHERS).items():
        if settings.get(key) is not None and not is_valid(settings[key]):
            yield key, f"is {_write(settings[key])}, and no {kind}", TRANSFORMERS


REQUESTS = ("repetition_penalty", "temperature", "top_k", "top_p", "min_p", "num_beams")


def _is_whole(value: Any) -> bool:
    """Whether it is a whole number, or one that transformers does not compute with: below 1."""
    return isinstance(value, int) or (isinstance(value, float) and value <= 1)


def _is_list_of_ids(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(number, int) and number >= 0 for number in value)


def _is_list_of_words(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_list_of_ids(word) and word for word in value)


def _is_end(value: Any) -> bool:
    return (type(value) is int and value >= 0) or (_is_list_of_ids(value) and bool(value))


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float))


def _write(value: Any) -> str:
    return clip(repr(value), 40)


OTHERS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "min_new_tokens": (_is_whole, "whole number"),
    "no_repeat_ngram_size": (lambda value: not isinstance(value, bool) and _is_whole(value), "whole number"),
    "forced_eos_token_id": (_is_end, "id or list of ids"),
    "guidance_scale": (_is_number, "number"),
    "max_time": (_is_number, "number"),
    "bad_words_ids": (_is_list_of_words, "list of lists of ids"),
    "suppress_tokens": (lambda value: isinstance(value, (list, dict)), "list of ids"),
    "begin_suppress_tokens": (lambda value: isinstance(value, (list, dict)), "list of ids"),
}
"""Setting that only transformers reads → whether it takes a value, and what that has to be."""
SAMPLING: dict[str, tuple[Callable[[Any], bool], str]] = {
    "typical_p": (lambda value: _is_number(value) and value > 0, "number above 0"),
    "epsilon_cutoff": (_is_number, "number"),
    "eta_cutoff": (_is_number, "number"),
}
"""The same for what is read where the model samples."""
