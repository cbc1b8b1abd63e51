"""A value head stands on a stage that is not the last.

## What it checks
In a legacy checkpoint only the ranks of the last pipeline stage, and there the last virtual chunk, hold a value head; and
all of them do. torch_dist does not tell stages apart.

## Why it matters
A head on another stage is called with hidden states of the middle of the model, or never. Where the flags of the stage are
read after the parent class took them away, every stage makes one, or none.

## How to fix
Make the head only where `post_process` is true, and read that before the parent's constructor.

## When it can be wrong
It cannot: a head anywhere else has nothing to do. `--ignore MEG032` silences it.

## Seen in
The design of ROLL's Megatron critic (flags stored before super().__init__)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.legacy import place_of
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.checkpoint.megatron.structure import VALUE_HEADS

HINT = "make the head only where post_process is true, and read that before the parent's constructor"


@rule(
    "MEG032",
    "misplaced-value-head",
    severity="error",
    on="megatron",
    when=lambda run: run.form == "legacy" and any(name.endswith(VALUE_HEADS) for name in run.weights),
)
def check(run: Megatron) -> Iterator[Problem]:
    places = {rank.folder: place_of(rank, run.args) for rank in run.ranks}
    last = max((place.pp for place in places.values()), default=0)
    for rank in run.ranks:
        heads = [
            number for number, tensors in enumerate(rank.chunks) if any(name.endswith(VALUE_HEADS) for name in tensors)
        ]
        end = len(rank.chunks) - 1
        stage = places[rank.folder].pp
        if stage == last and end not in heads:
            yield Problem("this is the last stage, and it holds no value head", file=rank.file, hint=HINT)
        if wrong := [number for number in heads if stage != last or number != end]:
            chunk = f", virtual chunk {wrong[0]}" if end else ""
            yield Problem(
                f"stage {stage} of {last + 1}{chunk} holds a value head and is not the last", file=rank.file, hint=HINT
            )
