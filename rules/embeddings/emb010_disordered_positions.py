"""The rows of a table of positions are in another order than they were trained in.

## What it checks
A table of learned positions in a text (`position_embeddings`, `wpe`, `embed_positions`) of at least 128 rows and 64 columns.
Training makes neighbouring positions nearly the same, about the mean of all. The rule reports

- a table in which an eighth of the rows or more are surely like another row (a cosine of 0.5 or more), and at most a quarter of
  these are most alike one of the eight rows around them;
- halves, quarters or eighths that belong together and do not stand together: the last row of the one is like the first of the
  other, and the rows that stand at these two seams are less alike by 0.3 or more.

At most 2,048 rows are compared, and the rows at the seams.

## Why it matters
Each token gets the place of another one. Names, shapes and statistics are right, every engine loads the table, and the model reads
the words in another order. Parts of ranks that were joined in the wrong order, or rows that were sorted by name, leave this.

## How to fix
Take the table from the checkpoint that this one was made from.

## When it can be wrong
Measured on seven trained models that packages ship, with 512 positions each:

| | rows like another one | of these, most alike a neighbour | the same, shuffled |
|---|---|---|---|
| all-MiniLM-L6-v2 | 511 | 100 % | 2 % |
| three BERTs of rxnfp | 509 | 100 % | 1 to 3 % |
| AntiBERTy, trained with short texts | 100 | 98 % | 3 % |
| two of IgLM, trained with short texts | 140, 151 | 91 and 95 % | 1 to 3 % |

- A model that learned places in a plane (patches of an image), or distances, has other neighbours: tables whose names say so are
  left out, and so is a table in which four distances hold half of the most alike rows, such as one that repeats a shorter one.
- A table that was put together from trained parts on purpose, in another order than they were trained in.
- It misses rows that are all off by some places, a table in the reverse order, and parts that were hardly trained.
- `--ignore EMB010`, or a reason under `[ignore]`, silences it.

## Seen in
Made by hand from the models above
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.values.detectors.position_order import MovedPart, find_position_tables, judge_positions


@rule(
    "EMB010",
    "disordered-positions",
    severity="warning",
    on="values",
    when=lambda ckpt: bool(find_position_tables(ckpt)),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    _ = ckpt.values
    if not ckpt.can_sample:
        raise Skip("matrices are read again only on disk, and in an object store with --values")
    for name in find_position_tables(ckpt):
        order = judge_positions(ckpt, name)
        if order is None:
            continue
        if isinstance(order, MovedPart):
            message = (
                f"row {order.start:,} continues row {order.end:,} (cosine {order.cosine:.2f}, and at most {order.found:.2f} at the "
                f"seams where they stand): of its {order.parts} equal parts, some stand in another place than they were trained for"
            )
        else:
            message = (
                f"of the {order.alike:,} of {order.rows:,} rows that are like another one, {order.in_order:,} are most alike a "
                "neighbour, and training makes nearly all so: the rows are in another order than they were trained in"
            )
        yield Problem(
            message,
            file=ckpt.tensor_to_file[name],
            key=name,
            hint="take this table from the checkpoint that this one was made from",
        )
