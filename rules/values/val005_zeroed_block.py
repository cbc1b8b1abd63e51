"""A block of a tensor is zero, as a failed write leaves it.

## What it checks
Nowhere in the data is there a run of 1 KiB or more of zero bytes within matrices that are otherwise not zero, also across
the border of two tensors. Matrices that are zero as a whole (VAL003, VAL004) are lost as well where the run tears a block out of
a neighbour, where it holds two of different kinds of which others in the model are not zero, or where a shard is nothing but
zeros.

Of embeddings and heads whole rows may be unused: there it takes half a row or more beside numbers of the same row, or exactly
what one of 2, 4 or 8 ranks holds; what the last of 4 or 8 holds counts where most of it are words of the tokenizer's own
vocabulary. Of other tensors with `embed` in their name (positions, segments) the same, but of ranks' parts only those of 8 rows
and more that do not end the table, and not exactly half a row, as sines of zero are; of a kernel of image patches also an eighth
of its filters side by side. Of packed and int8 weights it takes exactly one half. Left out are up to an eighth of a
matrix's rows at its end, which may be padding: not of routers, stacks of experts, and matrices with a row for each hidden
number. Left out too is what is no weight by its name, such as masks, filter banks and tables of positions, and a matrix whose
zeros lie beside a diagonal: an identity, a triangular or a block-diagonal one.

Of a matrix with at least 128 columns, no half, quarter or eighth of the columns is zero in every row (a last eighth is taken
for padding). Nobody looks for that on the Hub.

Of a weight that a Megatron run holds in parts, one for each tensor-parallel rank, no part is all zero while another is not;
rows that pad the vocabulary are left out.

## Why it matters
A disk that was full, an upload that lost a block or a tensor-parallel rank that was not gathered leaves zeros and no error:
sizes and headers are right.

## How to fix
Fetch or write the file again; compare hashes. Where exactly one half is zero, gather the tensor-parallel ranks.

## When it can be wrong
Structured pruning zeroes rows, columns, heads, experts or layers on purpose. A tensor that was allocated larger than
needed, with room for more than an eighth of its rows at the end, is zero there by design: patches of positions, capacity
for languages or tasks to come. A vocabulary may have been doubled with zeros. Matrices that join two inputs may start with
one of them switched off. A table stored as `weight` under a name that says nothing may hold zeros. `--ignore VAL005`, or a
reason under `[ignore]`, silences it.

## Seen in
vllm-project/vllm#53537, paiml/aprender#2337
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import count, few
from ckptcheck.values.blocks import Block, zeroed
from ckptcheck.values.columns import zero_columns
from ckptcheck.values.shards import zero_shards


@rule("VAL005", "zeroed-block", severity="error", on="values", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    columns = zero_columns(ckpt)
    for shard, found in zeroed(ckpt).items():
        blocks = [block for block in found if not columns.keys() >= set(block.tensors)]
        if not blocks:
            continue
        first = blocks[0]
        further = {name for block in blocks[1:] for name in block.tensors}
        there = f" in {few(further)}" if further - set(first.tensors) else ""
        whole = f"; {count(len(first.lost), 'matrix is', 'matrices are')} zero as a whole" if first.lost else ""
        half = "; it is exactly one half, as a lost tensor-parallel rank leaves it" if first.half else ""
        more = f", and {count(len(blocks) - 1, 'more such block')}{there}" if further else ""
        yield Problem(
            f"{first.nbytes:,} bytes in a row are zero, from byte {first.begin:,} of the data{_to_the_end(ckpt, shard, first)}, "
            f"{_where(ckpt, shard, first)}{whole}{half}{more}",
            file=shard,
            key=first.tensors[0],
            hint="fetch or write the file again, and compare its hash with the original's",
        )
    lost: dict[str, list[str]] = {}
    for parts in zero_shards(ckpt).values():
        for part in parts:
            lost.setdefault(ckpt.holders[part], []).append(part)
    for file, names in lost.items():
        yield Problem(
            f"{count(len(names), 'part of a weight is', 'parts of weights are')} all zero, and the other parts are not, "
            f"as a lost tensor-parallel rank leaves them: {few(names)}",
            file=file,
            key=names[0],
            hint="save again with all tensor-parallel ranks, or take an earlier iteration",
        )
    narrowed: dict[str, list[str]] = {}
    for name in columns:
        narrowed.setdefault(ckpt.holders[name], []).append(name)
    for file, (name, *others) in narrowed.items():
        begin, end = columns[name]
        width = ckpt.tensors[name].shape[-1]
        more = f", and such columns of {count(len(others), 'more matrix', 'more matrices')} ({few(others)})"
        yield Problem(
            f"columns {begin:,}-{end - 1:,} of {width:,} are zero in every row{more if others else ''}, as a lost "
            "tensor-parallel rank leaves them",
            file=file,
            key=name,
            hint="gather all tensor-parallel ranks and write the file again",
        )
    ckpt.require_values()
    if ckpt.source.local is None:
        raise Skip("columns are not looked at on the Hub")


def _to_the_end(ckpt: Checkpoint, shard: str, block: Block) -> str:
    last = max(tensor.data_offsets[1] for tensor in ckpt.shards[shard].tensors.values())
    return " to the end" if block.begin + block.nbytes == last else ""


def _where(ckpt: Checkpoint, shard: str, block: Block) -> str:
    """Say which rows it is in: ``in rows 1-6 of a.weight``, ``from row 5 of a.weight to row 3 of b.weight``."""
    name, other = block.tensors[0], block.tensors[-1]
    noun, begin = _row(ckpt, shard, name, block.begin)
    last, end = _row(ckpt, shard, other, block.begin + block.nbytes - 1)
    if name != other:
        return f"from {noun} {begin:,} of {name} to {last} {end:,} of {other}"
    return f"in {noun} {begin:,} of {name}" if begin == end else f"in {noun}s {begin:,}-{end:,} of {name}"


def _row(ckpt: Checkpoint, shard: str, name: str, at: int) -> tuple[str, int]:
    """Return which row of a matrix, or which matrix of a stack, holds a byte of the data; the last where it lies behind."""
    tensor = ckpt.shards[shard].tensors[name]
    number = min(at - tensor.data_offsets[0], tensor.nbytes - 1) * tensor.shape[0] // tensor.nbytes
    return "row" if len(tensor.shape) == 2 else "slice", number
