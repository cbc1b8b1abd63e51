"""A file holds the same piece twice, cut where no row of a tensor begins or ends.

## What it checks
The value pass notes eight bytes at the start of each block of 64 KiB of a file. If three blocks in a row have the bytes of three
others, it reads both pieces. The rule reports them if they are equal byte by byte and one of their four ends is not the end of a
row, because intended copies of heads, experts, layers or tied matrices are whole rows.

## Why it matters
A block written to the wrong place, uploaded twice, or copied by a faulty disk leaves a file of the right size with a sound header.
Every loader takes it, and a part of one matrix, often of two, holds the numbers of another one.

## How to fix
Fetch or write the file again, and compare its hash with the original's.

## When it can be wrong
- A model that repeats pieces of rows on purpose, without the rest of these rows; we know none. The rule would report two rows that
  begin with the same 192 KiB and end differently.
- It does not see pieces shorter than 192 KiB, pieces that moved by no multiple of 64 KiB, and copies from another file.
- Constant pieces, and those with fewer than 1,024 different words in 64 KiB (masks, tables), are left out.
- `--ignore VAL035`, or a reason under `[ignore]`, silences it.

## Seen in
atomantic/PortOS#1324 (files of the right size with wrong bytes, which decode to garbage), facebookresearch/metaseq#122 (a piece of
one shard of OPT-175B)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count
from ckptcheck.values.detectors.byte_compare import require_sampling
from ckptcheck.values.detectors.repeated_pieces import RepeatedPiece, find_repeated_pieces


@rule("VAL035", "repeated-piece", severity="error", on="values", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    require_sampling(ckpt, "pieces of files")
    by_file: dict[str, list[RepeatedPiece]] = {}
    for piece in find_repeated_pieces(ckpt):
        by_file.setdefault(piece.shard, []).append(piece)
    for file, (first, *others) in by_file.items():
        yield Problem(
            f"{first.nbytes:,} bytes from byte {first.original:,} of the file, in {first.tensors[0]}, stand once more from byte "
            f"{first.copy:,} on, in {first.tensors[1]}, and are not whole rows: one of the two was overwritten"
            + (f"; {count(len(others), 'more piece stands', 'more pieces stand')} in it twice" if others else ""),
            file=file,
            key=first.tensors[1],
            hint="fetch or write the file again, and compare its hash with the original's",
        )
    ckpt.require_values()
