"""A weight matrix is all zero.

## What it checks
- No matrix is all zero, and no packed or int8 weight has only zero bytes.
- Where one packed tensor holds all experts of a layer, no expert of 1 KiB or more is all zero (VAL005 sees that in plain
  tensors).
- A `lora_B` is not zero where at least three in four of its siblings, and another one of its own layer, are not.

It leaves out:
- what starts at zero by design (`lora_B` and the like, zero points, mask tokens, moments of an optimizer), and biases;
- the tensors of VAL003;
- parts of a Megatron weight whose other parts are not zero, and matrices within a lost block (both VAL005);
- a kind of matrix that is zero in every layer of a checkpoint that looks freshly initialised as a whole, since some architectures
  start output projections or gates at zero; one that is zero in some layers only is reported;
- a checkpoint, or a stack of layers, of nothing but zeros (VAL016).

## Why it matters
A download lost a block, an exporter allocated a tensor and never filled it, or a shard was zeroed. The layer passes its input
through, and the model answers almost sensibly. An adapter that is zero in one layer does nothing there.

## How to fix
Compare the file's hash with the original, or fetch it again; else export again.

## When it can be wrong
It is a warning because a lost matrix and an intended one look the same:
- Some methods zero matrices on purpose: pruning, `o_proj` and `down_proj` of layers added to deepen a model (they start as the
  identity), convolutions of a ControlNet, gates of adapters that start closed, a value head before its training. The paper of
  the method says so.
- It does not judge norms and other vectors: models with (1 + weight) norms, such as Gemma's, start them at zero (VAL012 compares
  them with their siblings).
- It does not report an adapter that is zero throughout, as before its training, one of an expert, or one of a layer in which
  all are zero.
- In a packed weight zero bytes need not stand for zeros: quantizers encode the number zero in different ways.
- `--ignore VAL004`, or a reason under `[ignore]`, silences it.

## Seen in
paiml/aprender#2337 (27 of 339 tensors: down_proj and v_proj)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count, format_ranges, list_unless_single
from ckptcheck.values.detectors.blank_weights import find_blank_tensors
from ckptcheck.values.detectors.init_detection import find_initial_constants
from ckptcheck.values.detectors.roles import (
    find_vocabulary_tensors,
    is_matrix,
    is_packed,
    is_router,
    is_scale,
    starts_at_zero,
)
from ckptcheck.values.detectors.zeroed_blocks import find_zero_blocks
from ckptcheck.values.detectors.zeroed_slices import find_zero_adapters, find_zero_experts, find_zero_rank_shards

HINT = "compare the file's hash with the original's: if it differs, fetch the file again; if not, export again"


@rule("VAL004", "zero-weight", severity="warning", on="values", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    reported_elsewhere = find_vocabulary_tensors(ckpt).keys() | find_blank_tensors(ckpt)
    reported_elsewhere |= {name for parts in find_zero_rank_shards(ckpt).values() for name in parts}
    zero = [
        stats
        for name, stats in ckpt.values.tensors.items()
        if stats.zero
        and (is_matrix(stats) or is_packed(stats))
        and not is_scale(name)
        and not starts_at_zero(name)
        and name not in reported_elsewhere
        and not is_router(ckpt, stats)
    ]
    initial = {stats.name for stats in zero} & find_initial_constants(ckpt) if zero else set()
    lost = {
        name
        for blocks in (find_zero_blocks(ckpt) if zero else {}).values()
        for block in blocks
        for name in block.lost_tensors
    }
    zero = [stats for stats in zero if stats.name not in lost | initial]
    for shard in dict.fromkeys(stats.shard for stats in zero):
        names = [stats.name for stats in zero if stats.shard == shard]
        yield Problem(
            f"{count(len(names), 'matrix is', 'matrices are')} all zero{list_unless_single(names)}",
            file=shard,
            key=names[0],
            hint=HINT,
        )
    for name, numbers in find_zero_experts(ckpt).items():
        yield Problem(
            f"expert{'s' if len(numbers) > 1 else ''} {format_ranges(numbers)} of {ckpt.tensors[name].shape[0]} "
            f"{'are' if len(numbers) > 1 else 'is'} all zero in this tensor",
            file=ckpt.tensor_to_file[name],
            key=name,
            hint=HINT,
        )
    if adapters := find_zero_adapters(ckpt):
        yield Problem(
            f"{count(len(adapters), 'adapter is', 'adapters are')} all zero, and those of most other layers are not"
            f"{list_unless_single(adapters)}",
            file=ckpt.tensor_to_file.get(adapters[0]),
            key=adapters[0],
            hint="check that these modules were trained, and save the adapter again",
        )
    ckpt.require_values()
    if initial:
        raise Skip("the checkpoint looks freshly initialised: its norms are constant")
