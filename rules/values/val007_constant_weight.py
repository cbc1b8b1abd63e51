"""A weight matrix holds one number only, or one magnitude.

## What it checks
- No matrix has the same value everywhere, except zero (VAL003, VAL004).
- No packed or int8 weight repeats one word.
- No projection of the language model's layers has a single magnitude (only the signs differ) in 2,048 numbers from its middle and
  4,096 from all over it, while the same matrix has several in three times as many other layers, and in at least three.
- The rule leaves out routers (VAL003), scales, and a checkpoint or a stack of layers with no other matrices (VAL016). It also
  leaves out a kind of matrix that is constant in every layer, if the whole checkpoint looks freshly initialised.

## Why it matters
Such a matrix has rank one and carries nothing from training: a program filled it instead of loading it. Packed words that are
all 0x88 are a matrix of zeros in most 4-bit formats.

A matrix that keeps only its signs has the shape, the dtype and about the size of the trained one. A failed quantization, or a
format for gradients that keeps signs, leaves it.

## How to fix
Export again from a checkpoint that has its values.

## When it can be wrong
- Some architectures have matrices that start constant and hardly move in low precision: layer scales, gates, mixing coefficients,
  decay tables, norms stored with a second dimension. If the model it was made from is constant there too, nothing is lost.
- Binary and ternary models (BitNet) have one magnitude in most layers, and are not reported. One with a few binary layers is. (Of
  664 matrices of nine trained models, two of them dequantized from 4 bits, none has fewer than 67 in 256 numbers.)
- The rule does not see a matrix with one magnitude for each row or block, nor one of the experts.
- A matrix that was pruned as a whole before packing is constant too.
- `--ignore VAL007`, or a reason under `[ignore]`, silences it.

## Seen in
NVIDIA/Megatron-LM#5844 (experts left as they were allocated)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count, list_unless_single
from ckptcheck.values.detectors.blank_weights import find_blank_tensors
from ckptcheck.values.detectors.init_detection import find_initial_constants
from ckptcheck.values.detectors.middle_pieces import find_single_magnitudes
from ckptcheck.values.detectors.roles import group_by_file, is_matrix, is_packed, is_router, is_scale


@rule("VAL007", "constant-weight", severity="warning", on="values", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    constant = [
        stats
        for name, stats in ckpt.values.tensors.items()
        if stats.constant
        and not stats.zero
        and not stats.nan
        and not stats.inf
        and (is_packed(stats) or (is_matrix(stats) and min(stats.shape) > 1))
        and not is_scale(name)
        and not is_router(ckpt, stats)
        and name not in find_blank_tensors(ckpt)
    ]
    initial = {stats.name for stats in constant} & find_initial_constants(ckpt) if constant else set()
    constant = [stats for stats in constant if stats.name not in initial]
    for shard in dict.fromkeys(stats.shard for stats in constant):
        names = [stats.name for stats in constant if stats.shard == shard]
        yield Problem(
            f"{count(len(names), 'matrix holds', 'matrices hold')} one number everywhere{list_unless_single(names)}",
            file=shard,
            key=names[0],
            hint="export again from a checkpoint that has its values",
        )
    for shard, names in group_by_file(ckpt, find_single_magnitudes(ckpt) if ckpt.can_sample else (), str).items():
        yield Problem(
            f"{count(len(names), 'matrix holds', 'matrices hold')} one magnitude everywhere, of which only the signs differ, and "
            f"most siblings hold many{list_unless_single(names)}",
            file=shard,
            key=names[0],
            hint="export again from a checkpoint that has its values",
        )
    ckpt.require_values()
    if initial:
        raise Skip("the checkpoint looks freshly initialised: its norms are constant")
