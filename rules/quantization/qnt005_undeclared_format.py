"""Weights are stored quantized in a way that the config does not declare.

## What it checks
- If weights are quantized, a config declares it: `quantization_config` in config.json, or hf_quant_config.json or
  quantize_config.json beside it.
- Every quantized weight has the format of one of the declared schemes.
- Without such a config, no floats have the name of packed numbers (`gate_up_proj_blocks`). transformers 5.23 writes them after it
  loaded a gpt-oss model with `Mxfp4Config(dequantize=True)`.

## Why it matters
Loaders build modules from the config. Without one they look for `weight`, find `weight_packed`, and start the weight from random
numbers (transformers) or stop (vLLM). FP8 keeps the name `weight`, which transformers loads without its scales. No loader can read
FP8 bytes where the config declares packed integers.

## How to fix
Declare what the tensors are; the tool that quantized them writes the block. The usual cause is a config that was copied from the
model before it was quantized, or from a variant with another quantization.

## When it can be wrong
A loader of your own may judge by the tensors alone.

## Seen in
vllm-project/vllm#37667, sgl-project/sglang#35797
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import QuantizedCheckpoint
from ckptcheck.consumers.grouped_faults import group_faults
from ckptcheck.text.formatting import count


@rule(
    "QNT005",
    "undeclared-format",
    severity="error",
    on="quantization",
    when=lambda ckpt: ckpt.config is not None and not ckpt.is_partial,
)
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    if ckpt.quantization.main_declaration is None:
        places, misnamed = (
            sorted(
                (stored.name(module, stored.weight.role), stored.weight.dtype)
                for stored, modules in ckpt.quantization.storages.items()
                if stored.is_quantized
                and stored.weight is not None
                and (stored.is_misnamed if plain else stored.companions)
                for module in modules
            )
            for plain in (False, True)
        )
        if places:
            first, dtype = places[0]
            keeps_name = dtype.startswith("F8_") and first.endswith(".weight")
            yield Problem(
                f"{count(len(places), 'weight is', 'weights are')} quantized, this one as {dtype}, and no config declares how: "
                f"transformers {'loads the numbers without their scales' if keeps_name else 'starts them from random numbers'}, "
                "vLLM stops",
                file=ckpt.tensor_to_file[first],
                key=first,
                hint="add the quantization_config that the tool which quantized them wrote",
                names=tuple(name for name, _ in places),
            )
        if misnamed:
            first, dtype = misnamed[0]
            yield Problem(
                f"{count(len(misnamed), 'weight has', 'weights have')} plain numbers, this one {dtype}, under the name of packed "
                f"ones: transformers looks for {first.removesuffix('_blocks')} and starts it from random numbers",
                file=ckpt.tensor_to_file[first],
                key=first,
                hint="rename them without _blocks",
                names=tuple(name for name, _ in misnamed),
            )
        return
    for group in group_faults(ckpt, "format"):
        form = group.fault.form
        if form is None or group.weight is None:
            continue
        yield Problem(
            f"it is stored as {ckpt.tensors[group.weight].dtype}, but {group.fault.scheme_key} declares {form.name}, whose "
            f"{form.weight} is {' or '.join(form.dtypes)}{group.others}: no loader can read it",
            file=group.file,
            key=group.key,
            hint="declare the format that the tensors have, or quantize again if they were to have the declared one",
            names=group.modules,
        )
    ckpt.require_headers()
