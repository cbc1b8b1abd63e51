"""The quantization config does not name its method.

## What it checks
`quantization_config` has a `quant_method` that is a text (or the `load_in_4bit`, `load_in_8bit` of bitsandbytes). If only
hf_quant_config.json says that the model is quantized, vLLM recognises the method by that file.

## Why it matters
- transformers 5.23 and SGLang 0.5.23 refuse a `quantization_config` without a method.
- vLLM 0.32 loads the packed tensors into modules that are not quantized, and stops.
- vLLM and SGLang also recognise ModelOpt by other settings, and by different ones. vLLM looks for `producer.name` modelopt with
  a `quant_algo` below `quantization`, as in hf_quant_config.json. It then accepts FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO and
  NVFP4, and refuses others that it would read if the method were named. SGLang looks at `quant_algo` alone.

The message says which consumer recognises the config.

## How to fix
Write the method of the tool that quantized the model: `compressed-tensors`, `fp8`, `gptq`, `awq`, `modelopt`, … For ModelOpt
write `quantization_config` as its version 0.31 and later do: flat, with `quant_method`, `quant_algo` and `ignore`.

## When it can be wrong
- If the message says that your only consumer recognises it: `--ignore QNT006`. `--quantization` on vLLM's command line does not
  help, because it has to agree with the config.
- QNT005 judges whether a named method is the right one, by what is stored.

## Seen in
NVIDIA/Model-Optimizer#1807
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.quantization.declarations import Declaration
from ckptcheck.checkpoint.views import QuantizedCheckpoint
from ckptcheck.consumers.registry import CONSUMERS
from ckptcheck.consumers.undeclared_method import get_algorithm, is_fixed_by_naming_method, read_by_sglang, read_by_vllm
from ckptcheck.text.formatting import join_words

MODELOPT = "hf_quant_config.json"
FLAT = "write quantization_config into config.json, flat, with quant_method modelopt"


@rule("QNT006", "unnamed-method", severity="error", on="quantization")
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    main = ckpt.quantization.main_declaration
    if main is None:
        return
    if main.file == MODELOPT and len({declared.file for declared in ckpt.quantization.declarations}) == 1:
        yield from _file(ckpt.quantization_files[MODELOPT].value)
    elif main.method is None:
        yield _config(main)


def _config(main: Declaration) -> Problem:
    refusing: list[str] = []
    skipping: list[str] = []
    knowing: list[str] = []
    for consumer in CONSUMERS.values():
        outcome = None if consumer.read_undeclared is None else consumer.read_undeclared(main.value, main.key)
        if outcome == "refused":
            refusing.append(consumer.title)
        elif outcome == "plain":
            skipping.append(consumer.title)
        elif outcome == "known":
            knowing.append(f"{consumer.title} recognises it {consumer.undeclared_clue}")
    parts = []
    if refusing:
        parts.append(f"{join_words(refusing)} {'refuses' if len(refusing) == 1 else 'refuse'} to load it")
    if skipping:
        parts.append(f"{join_words(skipping)} {'treats' if len(skipping) == 1 else 'treat'} the model as unquantized")
    return Problem(
        f"there is no quant_method, so {', and '.join(parts)}" + (f"; {join_words(knowing)}" if knowing else ""),
        file=main.file,
        key=main.key_path("quant_method"),
        hint=FLAT if knowing else "write the method of the tool that quantized the model",
    )


def _file(whole: Mapping[str, Any]) -> Iterator[Problem]:
    """Judge a hf_quant_config.json beside a config.json that does not mention quantization."""
    outcome = read_by_vllm(whole)
    if outcome == "known" or not is_fixed_by_naming_method(whole):
        return
    if outcome == "plain":
        knows = read_by_sglang(whole) == "known"
        yield Problem(
            "config.json does not mention quantization, and producer.name is not modelopt here, so vLLM treats the model as "
            "unquantized" + ("; SGLang recognises it by its quant_algo" if knows else ""),
            file=MODELOPT,
            key="producer.name",
            hint=FLAT,
        )
        return
    if not isinstance(whole.get("producer", {}), dict):
        yield Problem(
            "producer is not an object, and vLLM refuses to load it", file=MODELOPT, key="producer", hint=FLAT
        )
        return
    yield Problem(
        "config.json does not mention quantization, and from the producer named here vLLM does not accept "
        f"{get_algorithm(whole)}: it refuses to load it, and would read it if quant_method were given",
        file=MODELOPT,
        key="quantization.quant_algo",
        hint=FLAT,
    )
