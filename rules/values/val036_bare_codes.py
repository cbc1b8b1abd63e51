"""Matrices hold the codes of a quantization, and no scale belongs to them.

## What it checks
No four matrices or more are codes of one format: E4M3, E5M2, E4M3 FNUZ, FP4, or integers of 8 or 4 bits, with or without a sign.
- Their largest magnitude is the format's: 448, 57,344, 240, 6, 127 or 128, 7 or 8, 255, 15. For floats of 8 bits, whose scales may
  be powers of two, it lies in the format's last power of two.
- Of 2,048 numbers in the middle of the matrix, at least nine in ten are numbers that the format has, and nearly all of the format's
  magnitudes are among them.
- No scale is stored beside the matrix. Where its dtype is one of 8 bits, no config declares a quantization either: QNT001 reports
  scales that are declared and missing.

## Why it matters
Each number is a weight divided by the scale of its block. transformers, vLLM and SGLang load the matrix without a warning and
multiply by numbers that are hundreds or thousands of times too large: the model writes nonsense. A merge of an adapter into an FP8
base leaves this if it casts the weights to 16 bits and drops their scales.

## How to fix
Export again: multiply each block by its scale before the cast (`dequantize`). If the quantized base is at hand, its scales fit
these codes.

## When it can be wrong
- Weights that were trained quantized and dequantized lie on such a grid too, but their scale moves the end of it. The rule is
  silent then, and for ternary and binary weights, tables, embeddings and matrices with a side below 32.
- It misses codes of which an adapter moved more than a tenth, codes of 2 and 3 bits, and codes in which no number reached the end.
- Measured on SmolLM2-135M, plain and packed to 4 bits, and on every architecture that transformers builds: none of the matrices
  ends where a format does.
- `--ignore VAL036`, or a reason under `[ignore]`, silences it.

## Seen in
unslothai/unsloth-zoo#803, thinking-machines-lab/tinker-cookbook#478, unslothai/unsloth#4919
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import join_truncated
from ckptcheck.values.detectors.bare_codes import find_bare_codes
from ckptcheck.values.detectors.byte_compare import require_sampling


@rule("VAL036", "bare-codes", severity="error", on="values", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    require_sampling(ckpt)
    for codes in find_bare_codes(ckpt):
        first = codes.names[0]
        has_scale = any(f"{first}_{role}" in ckpt.tensors for role in ("scale", "scale_inv"))
        yield Problem(
            f"{len(codes.names):,} matrices are {codes.format.name} codes "
            f"{'beside scales that nothing declares' if has_scale else 'without their scales'}, stored as "
            f"{ckpt.tensors[first].dtype}: the largest is {ckpt.values.tensors[first].absmax:,.0f}, and engines take them for the "
            f"weights: {join_truncated(codes.names)}",
            file=ckpt.tensor_to_file[first],
            key=first,
            hint="add the quantization_config that the tool which quantized them wrote, or multiply each block by its scale"
            if has_scale
            else "export again, and multiply each block by its scale before the cast",
        )
    ckpt.require_values()
