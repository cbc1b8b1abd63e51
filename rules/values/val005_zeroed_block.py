"""A block of a tensor is zero, as a failed write or a lost rank leaves it.

## What it checks
Runs of zeros:
- Matrices that are not zero hold no run of 1 KiB or more of zero bytes. A run may cross from one tensor to the next.
- Matrices that are zero as a whole (VAL003, VAL004) count as lost if the run also covers a part of a neighbour that is not
  zero, if it covers two of different kinds whose other members in the model are not zero, or if the shard holds nothing but
  zeros.
- Embeddings and heads may have unused rows. Their zeros count if half a row or more is zero next to numbers of the same row, or
  if they are exactly the part of one of 2, 4 or 8 ranks. The last part of 4 or 8 ranks counts only if most of its rows belong to
  words of the tokenizer's own vocabulary.
- In other tensors with `embed` in their name (positions, segments, kernels of image patches) zeros count if half a row or filter is
  zero next to numbers of the same one. Exactly half a row does not count, since sines of position zero are zero.
- Packed and int8 weights count only if exactly one half is zero.
- Up to an eighth of a matrix's rows at its end may be padding, except in routers, stacks of experts, and matrices with a row
  for each hidden unit.
- A kind of matrix that is zero in every layer of a checkpoint that looks freshly initialised is left out, because its
  initialiser may leave it zero; findings of VAL016 are left out too.
- Tensors that are not weights by their name (masks, filter banks, Fourier bases, windows, tables of positions) are left out, and
  so are matrices whose zeros show a pattern: identities, triangular and block-diagonal matrices, permutations, and convolutions
  that compute a Fourier transform, in which the sines of frequency 0 are zero.

Columns: in a matrix of at least 128 columns, no half, quarter or eighth of the columns is zero in every row. The last eighth
may be padding. The rule does not look for this on the Hub.

Parts of a Megatron weight, one for each tensor-parallel rank: no part is all zero while another is not. Rows that pad the
vocabulary are left out.

## Why it matters
A full disk, an upload that lost a block, or a tensor-parallel rank that was not gathered leaves zeros and no error: sizes and
headers are right.

## How to fix
Fetch or write the file again, and compare hashes. If exactly one half is zero, gather the tensor-parallel ranks.

## When it can be wrong
- Structured pruning zeroes rows, columns, heads, experts or layers on purpose.
- A tensor may be allocated with room for more than an eighth of its rows at the end: patches of positions, capacity for languages
  or tasks to come. A vocabulary may have been doubled with zeros.
- A matrix that joins two inputs may start with one of them switched off.
- A table stored as `weight` under a name that does not show its purpose may hold zeros.
- `--ignore VAL005`, or a reason under `[ignore]`, silences it.

## Seen in
vllm-project/vllm#53537, paiml/aprender#2337
"""

from collections.abc import Iterator
from itertools import chain

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count, join_truncated
from ckptcheck.values.detectors.roles import group_by_file
from ckptcheck.values.detectors.zeroed_blocks import ZeroBlock, find_zero_blocks
from ckptcheck.values.detectors.zeroed_slices import find_zero_columns, find_zero_rank_shards


@rule("VAL005", "zeroed-block", severity="error", on="values", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    columns = find_zero_columns(ckpt)
    for shard, all_blocks in find_zero_blocks(ckpt).items():
        blocks = [block for block in all_blocks if not columns.keys() >= set(block.tensors)]
        if not blocks:
            continue
        first = blocks[0]
        further = {name for block in blocks[1:] for name in block.tensors}
        other_tensors = f" in {join_truncated(further)}" if further - set(first.tensors) else ""
        whole = (
            f"; {count(len(first.lost_tensors), 'matrix is', 'matrices are')} zero as a whole"
            if first.lost_tensors
            else ""
        )
        half = "; this is exactly one half: a tensor-parallel rank seems to be missing" if first.is_half else ""
        more = f", and {count(len(blocks) - 1, 'more such block')}{other_tensors}" if further else ""
        yield Problem(
            f"{first.nbytes:,} consecutive bytes are zero, from byte {first.begin:,} of the data{_to_the_end(ckpt, shard, first)}, "
            f"{_where(ckpt, shard, first)}{whole}{half}{more}",
            file=shard,
            key=first.tensors[0],
            hint="compare the file's hash with the original's: if it differs, fetch the file again; if not, write it again",
            names=tuple(dict.fromkeys(name for block in blocks for name in block.tensors)),
        )
    for file, names in group_by_file(ckpt, chain(*find_zero_rank_shards(ckpt).values()), str).items():
        yield Problem(
            f"{count(len(names), 'part of a weight is', 'parts of weights are')} all zero, and the other parts are not "
            f"(a tensor-parallel rank seems to be missing): {join_truncated(names)}",
            file=file,
            key=names[0],
            hint="save again with all tensor-parallel ranks, or take an earlier iteration",
        )
    for file, (name, *others) in group_by_file(ckpt, columns, str).items():
        begin, end = columns[name]
        width = ckpt.tensors[name].shape[-1]
        more = (
            f", and so are columns of {count(len(others), 'more matrix', 'more matrices')} ({join_truncated(others)})"
        )
        yield Problem(
            f"columns {begin:,}-{end - 1:,} of {width:,} are zero in every row{more if others else ''}: "
            "a tensor-parallel rank seems to be missing",
            file=file,
            key=name,
            hint="gather all tensor-parallel ranks and write the file again",
            names=(name, *others),
        )
    ckpt.require_values()
    if not ckpt.can_sample:
        raise Skip("columns are read only on disk, and in an object store with --values")


def _to_the_end(ckpt: Checkpoint, shard: str, block: ZeroBlock) -> str:
    last = max(tensor.data_offsets[1] for tensor in ckpt.shards[shard].tensors.values())
    return " to the end" if block.begin + block.nbytes == last else ""


def _where(ckpt: Checkpoint, shard: str, block: ZeroBlock) -> str:
    """Write which rows a block covers: ``in rows 1-6 of a.weight``, ``from row 5 of a.weight to row 3 of b.weight``."""
    name, other = block.tensors[0], block.tensors[-1]
    noun, begin = _row(ckpt, shard, name, block.begin)
    last, end = _row(ckpt, shard, other, block.begin + block.nbytes - 1)
    if name != other:
        return f"from {noun} {begin:,} of {name} to {last} {end:,} of {other}"
    return f"in {noun} {begin:,} of {name}" if begin == end else f"in {noun}s {begin:,}-{end:,} of {name}"


def _row(ckpt: Checkpoint, shard: str, name: str, at: int) -> tuple[str, int]:
    """Return the row of a matrix, or the matrix of a stack, that holds a byte of the data; the last one for bytes beyond it."""
    tensor = ckpt.shards[shard].tensors[name]
    number = min(at - tensor.data_offsets[0], tensor.nbytes - 1) * tensor.shape[0] // tensor.nbytes
    return "row" if len(tensor.shape) == 2 else "slice", number
