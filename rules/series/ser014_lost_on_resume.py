"""What was loaded is not what was saved.

## What it checks
- `--resumed` names a save that was written right after the run was loaded elsewhere, on another grid of ranks for example. Each
  tensor that both have, of the weights and of the optimizer, is equal in the last save (or in that of the same step) and there.

## Why it matters
- A load on another grid splits, joins and pads every tensor anew. What goes wrong there is silent, and training continues from it.

## How to fix
- Look what the tensors have in common: a projection, a stage, the padding of the vocabulary. `ckptcheck diff` says how they differ.

## When it can be wrong
- The resumed run took a step before it saved.

## Seen in
areal-project/AReaL#1468 (Megatron's moments dropped without a word), huggingface/transformers#48569 (an optimizer in the wrong
state under tensor parallelism), ISEEKYAN/Megatron-LM#104 (FSDP goes on from stale weights)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.compare.matching.name_groups import group_names
from ckptcheck.runs.saves.save import Save
from ckptcheck.runs.saves.save_series import SaveSeries
from ckptcheck.text.formatting import count


@rule("SER014", "lost-on-resume", severity="error", on="saves", when=lambda series: bool(series.resumed))
def check(series: SaveSeries) -> Iterator[Problem]:
    compared = False
    for before, after in _pair(series):
        compared = True
        if before.identity and before.identity == after.identity and before.states.keys().isdisjoint(after.states):
            continue
        for what, first, second in (
            ("", before.weights, after.weights),
            (" of the optimizer", before.states, after.states),
        ):
            common = sorted(first.keys() & second.keys())
            if what and not common:
                continue
            lost = sorted(first.keys() - second.keys())
            other = [name for name in common if first[name].content != second[name].content]
            if not what and not common:
                raise Skip(f"{before.name} and {after.name} have no names in common: name a checkpoint with --like")
            if other:
                yield Problem(
                    f"{count(len(other), 'tensor')} of {len(common):,}{what} {'is' if len(other) == 1 else 'are'} other in"
                    f" {after.name} than in {before.name}: {group_names(other)}",
                    file=after.name,
                    key=other[0],
                    hint=f"ckptcheck diff {before.address} {after.address} says how they differ",
                )
            if lost:
                yield Problem(
                    f"{count(len(lost), 'tensor')}{what} of {before.name} {'is' if len(lost) == 1 else 'are'} not in"
                    f" {after.name}: {group_names(lost)}",
                    file=after.name,
                    key=lost[0],
                    hint="the load left them out, and they start anew, or the save after it did",
                )
    if not compared:
        raise Skip("neither the saves nor what was saved after the load could be read completely")


def _pair(series: SaveSeries) -> Iterator[tuple[Save, Save]]:
    """Yield each strand's save with what was saved after the load: that of the same step, else the last with the first."""
    after = [save for save in series.resumed if save.is_digested]
    for strand in series.strands:
        of_strand = [save for save in after if save.strand == strand.name] or (
            after if len(series.strands) == 1 else []
        )
        if not strand.digested or not of_strand:
            continue
        steps = {save.number: save for save in strand.digested}
        same = next((save for save in of_strand if save.number in steps), None)
        yield (steps[same.number], same) if same is not None else (strand.digested[-1], of_strand[0])
