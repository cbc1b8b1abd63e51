"""The quantization config does not name its method.

## What it checks
`quantization_config` has a `quant_method` that is a text (or the `load_in_4bit`, `load_in_8bit` of bitsandbytes).

## Why it matters
- transformers 5.23 and SGLang 0.5.23 refuse a `quantization_config` without a method. transformers takes the model for unquantized
  if the text is empty.
- vLLM 0.32 loads the packed tensors into modules that are not quantized, and stops.
- vLLM and SGLang also recognise ModelOpt by other settings, and by different ones: vLLM by `producer.name` beside a `quant_algo`
  below `quantization`, SGLang by `quant_algo` alone.

## How to fix
Write the method of the tool that quantized the model: `compressed-tensors`, `fp8`, `gptq`, `awq`, `modelopt`, … For ModelOpt
write `quantization_config` as its version 0.31 and later do: flat, with `quant_method`, `quant_algo` and `ignore`.

## When it can be wrong
- If your only consumer recognises ModelOpt by other settings: `--ignore QNT006`. `--quantization` on vLLM's command line does not
  help, because it has to agree with the config.
- QNT005 judges whether a named method is the right one, by what is stored.

## Seen in
NVIDIA/Model-Optimizer#1807
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import QuantizedCheckpoint


@rule("QNT006", "unnamed-method", severity="error", on="quantization")
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    main = ckpt.quantization.main_declaration
    if main is None or main.method is not None:
        return
    is_of_modelopt = "quant_algo" in main.value or "producer" in main.value
    yield Problem(
        "there is no quant_method, so consumers refuse to load it or treat the model as unquantized"
        + (", except an engine that recognises ModelOpt by its producer or quant_algo" if is_of_modelopt else ""),
        file=main.file,
        key=main.key_path("quant_method"),
        hint="write quantization_config into config.json, flat, with quant_method modelopt"
        if is_of_modelopt
        else "write the method of the tool that quantized the model",
    )
