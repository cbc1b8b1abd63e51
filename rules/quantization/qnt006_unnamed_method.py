"""The quantization config does not say which method it is.

## What it checks
`quantization_config` has a `quant_method` that is a text (or the `load_in_4bit`, `load_in_8bit` of bitsandbytes). Where only
hf_quant_config.json says that the model is quantized, vLLM knows it by what that file says.

## Why it matters
transformers 5.23 and SGLang 0.5.23 refuse a `quantization_config` without it. vLLM 0.32 loads the packed tensors into modules
that are not quantized, and stops.

ModelOpt is known by other words too, and not by the same ones. vLLM looks for `producer.name` modelopt with a `quant_algo`
below `quantization`, as in hf_quant_config.json; there it knows FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO and NVFP4, and
refuses others that it would read were the method named. SGLang looks at `quant_algo` alone. The message says who knows it.

## How to fix
Write the method of the tool that quantized the model: `compressed-tensors`, `fp8`, `gptq`, `awq`, `modelopt`, … For ModelOpt
write `quantization_config` as its version 0.31 and later do: flat, with `quant_method`, `quant_algo` and `ignore`.

## When it can be wrong
If the one consumer that you use is named as one that knows it: `--ignore QNT006`. `--quantization` on vLLM's command line does
not help, for it has to agree with the config. A method that is named and wrong is for QNT005, which looks at what is stored.

## Seen in
NVIDIA/Model-Optimizer#1807
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.quantization.declared import Declaration
from ckptcheck.dialects.unnamed import algorithm, by_sglang, by_transformers, by_vllm, naming_helps
from ckptcheck.phrase import listed

MODELOPT = "hf_quant_config.json"
FLAT = "write quantization_config into config.json, flat, with quant_method modelopt"


@rule("QNT006", "unnamed-method", severity="error", when=lambda ckpt: ckpt.quantization is not None)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    assert ckpt.quantization is not None
    main = ckpt.quantization.main
    if main is None:
        return
    if main.file == MODELOPT:
        yield from _file(ckpt.quantization_files[MODELOPT].value)
    elif main.method is None:
        yield _config(main)


def _config(main: Declaration) -> Problem:
    made = {"vLLM": by_vllm(main.value)}
    if main.key.endswith("quantization_config"):
        made = {"transformers": by_transformers(main.value), "SGLang": by_sglang(main.value), **made}
    else:  # compression_config, which transformers does not read, and of which SGLang asks no algorithm
        made = {"SGLang": "refused", **made}
    who = {how: [name for name, so in made.items() if so == how] for how in ("refused", "plain", "known")}
    parts = []
    if who["refused"]:
        parts.append(f"{listed(who['refused'])} {'refuses' if len(who['refused']) == 1 else 'refuse'} to load it")
    if who["plain"]:
        parts.append(
            f"{listed(who['plain'])} {'takes' if len(who['plain']) == 1 else 'take'} the model for not quantized"
        )
    by = {"vLLM": "by its producer", "SGLang": "by its quant_algo"}
    knows = f"; {listed([f'{name} knows it {by[name]}' for name in who['known']])}" if who["known"] else ""
    return Problem(
        f"there is no quant_method, so {', and '.join(parts)}{knows}",
        file=main.file,
        key=main.path("quant_method"),
        hint=FLAT if who["known"] else "write the method of the tool that quantized the model",
    )


def _file(whole: Mapping[str, Any]) -> Iterator[Problem]:
    """Look at a hf_quant_config.json beside a config.json that says nothing of quantization."""
    made = by_vllm(whole)
    if made == "known" or not naming_helps(whole):
        return
    if made == "plain":
        knows = by_sglang(whole) == "known"
        yield Problem(
            "config.json says nothing of quantization, and here no producer.name is modelopt, so vLLM takes the model for not "
            "quantized" + ("; SGLang knows it by its quant_algo" if knows else ""),
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
        f"config.json says nothing of quantization, and by the producer that is named here vLLM knows no {algorithm(whole)}: it "
        "refuses to load it, and would read it were the method named",
        file=MODELOPT,
        key="quantization.quant_algo",
        hint=FLAT,
    )
