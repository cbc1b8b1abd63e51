"""A value head is on a pipeline stage that is not the last.

## What it checks
In a legacy checkpoint, all ranks of the last pipeline stage hold a value head, in their last virtual chunk, and no other rank
holds one. torch_dist does not distinguish stages.

## Why it matters
A head on another stage gets hidden states from the middle of the model, or is never called. If a constructor reads the stage
flags after the parent class removed them, every stage creates a head, or none does.

## How to fix
Create the head only where `post_process` is true, and read that flag before calling the parent's constructor.

## When it can be wrong
It cannot: a head on another stage has no function. `--ignore MEG032` silences it.

## Seen in
The design of ROLL's Megatron critic (flags stored before super().__init__)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.legacy import rank_position
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.megatron.structure import VALUE_HEADS

HINT = "create the head only where post_process is true, and read that flag before the parent's constructor"


@rule(
    "MEG032",
    "misplaced-value-head",
    severity="error",
    on="megatron",
    when=lambda run: run.form == "legacy" and any(name.endswith(VALUE_HEADS) for name in run.weights),
)
def check(run: Megatron) -> Iterator[Problem]:
    places = {rank.folder: rank_position(rank, run.args) for rank in run.ranks}
    last = max((place.pp for place in places.values()), default=0)
    for rank in run.ranks:
        heads = [
            number for number, tensors in enumerate(rank.chunks) if any(name.endswith(VALUE_HEADS) for name in tensors)
        ]
        end = len(rank.chunks) - 1
        stage = places[rank.folder].pp
        if stage == last and end not in heads:
            yield Problem("this is the last stage, but it holds no value head", file=rank.file, hint=HINT)
        if wrong := [number for number in heads if stage != last or number != end]:
            chunk = f", virtual chunk {wrong[0]}" if end else ""
            yield Problem(
                f"stage {stage} of {last + 1}{chunk} holds a value head, but is not the last", file=rank.file, hint=HINT
            )
