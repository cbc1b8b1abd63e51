"""The quantization config does not say which method it is.

## What it checks
`quantization_config` has a `quant_method` that is a text (or the `load_in_4bit`, `load_in_8bit` of bitsandbytes).

## Why it matters
transformers refuses a `quantization_config` without it, and vLLM and SGLang load the packed tensors into modules that are not
quantized and stop.

## How to fix
Write the method of the tool that quantized the model: `compressed-tensors`, `fp8`, `gptq`, `awq`, `modelopt`, …

## When it can be wrong
vLLM 0.32 knows ModelOpt also by `producer` and `quant_algo`, where a whole `hf_quant_config.json` was copied into the
config: it loads such a model, and only transformers refuses it; `--ignore QNT006` if vLLM is all that reads it.
`--quantization` on vLLM's command line does not help: it has to agree with the config. A method that is named and
wrong is for QNT005, which looks at what is stored.

## Seen in
NVIDIA/Model-Optimizer#1807
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule("QNT006", "unnamed-method", severity="error", when=lambda ckpt: ckpt.quantization is not None)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    assert ckpt.quantization is not None
    main = ckpt.quantization.main
    if main is not None and main.method is None:
        yield Problem(
            "there is no quant_method, so transformers refuses to load it and engines take the model for not quantized",
            file=main.file,
            key=main.path("quant_method"),
            hint="write the method of the tool that quantized the model",
        )
