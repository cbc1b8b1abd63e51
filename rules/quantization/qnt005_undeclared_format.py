"""Weights are stored quantized in a way that the config does not declare.

## What it checks
Every quantized weight is stored in the format of one of the declared schemes, none is in a module that `dynamic` of a GPTQ
config leaves alone (`-:`; what the engines make of it is QNT020's), and where weights are quantized there is a
config that says so: `quantization_config` in config.json, or hf_quant_config.json or quantize_config.json beside it. Floats under
the name of packed numbers (`gate_up_proj_blocks`) without such a config are a finding too: transformers 5.23 writes them where
a gpt-oss model was loaded with `Mxfp4Config(dequantize=True)` and saved.

## Why it matters
Loaders build modules after the config. Without one they look for `weight`, find `weight_packed` and start the weight from
random numbers (transformers) or stop (vLLM); FP8 bytes where packed integers are declared fit nowhere.

## How to fix
Declare what the tensors are; the tool that quantized them writes the block. A config that was copied from the model before it was
quantized, or from a variant quantized otherwise, is the usual cause.

## When it can be wrong
A loader of your own may go by the tensors alone.

## Seen in
vllm-project/vllm#37667, sgl-project/sglang#35797
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.dialects.told import told
from ckptcheck.dialects.views import clashes, first_expert
from ckptcheck.phrase import count


@rule(
    "QNT005",
    "undeclared-format",
    severity="error",
    when=lambda ckpt: ckpt.quantization is not None and ckpt.config is not None and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    assert ckpt.quantization is not None
    if ckpt.quantization.main is None:
        places, misnamed = (
            sorted(
                (stored.name(module, stored.weight.role), stored.weight.dtype)
                for stored, modules in ckpt.quantization.stored.items()
                if stored.is_quantized
                and stored.weight is not None
                and (stored.is_misnamed if plain else stored.companions)
                for module in modules
            )
            for plain in (False, True)
        )
        if places:
            first, dtype = places[0]
            yield Problem(
                f"{count(len(places), 'weight is', 'weights are')} quantized, this one as {dtype}, and no config says how: "
                "transformers starts them from random numbers, vLLM stops",
                file=ckpt.holders[first],
                key=first,
                hint="add the quantization_config that the tool which quantized them wrote",
            )
        if misnamed:
            first, dtype = misnamed[0]
            yield Problem(
                f"{count(len(misnamed), 'weight has', 'weights have')} plain numbers, this one {dtype}, under the name of packed "
                f"ones: transformers looks for {first.removesuffix('_blocks')} and starts it from random numbers",
                file=ckpt.holders[first],
                key=first,
                hint="rename them without _blocks",
            )
        return
    left = {first_expert(clash.module) for clash in clashes(ckpt, quantized=True)}  # QNT020 says what comes of it
    for found in told(ckpt, "excluded"):
        assert found.fault.scheme is not None
        if any(first_expert(module) not in left for module in found.modules):
            yield Problem(
                f"it is stored quantized{found.others}, but {found.fault.scheme.key} leaves it as it was: GPTQModel builds it "
                "plain and starts it from random numbers",
                file=found.file,
                key=found.key,
                hint="correct the pattern, or quantize again",
            )
    for found in told(ckpt, "format"):
        scheme, form = found.fault.scheme, found.fault.form
        assert scheme is not None
        assert form is not None
        assert found.weight is not None
        yield Problem(
            f"it is stored as {ckpt.tensors[found.weight].dtype}, but {scheme.key} declares {form.name}, whose weights are "
            f"{' or '.join(form.dtypes)} {form.weight}{found.others}: no loader can read it",
            file=found.file,
            key=found.key,
            hint="declare the format that the tensors have",
        )
    ckpt.require_headers()
