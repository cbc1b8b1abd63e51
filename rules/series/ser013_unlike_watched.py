"""A save is not what the live trainer held at that step.

## What it checks
- `--history` names the record that `ckptcheck.watch` kept in the job. Where it has the identity of the weights of a step that was
  saved too, both are equal.
- If none of the saves equals what was recorded, the trainer may have sent another dtype or other names than it saves. Then the rule
  only warns.

## Why it matters
- The save holds other weights than those that were trained and evaluated: an earlier step's, or memory that was overwritten while
  it was written.

## How to fix
- Save again, without asynchronous saving. SER001 says whether the bytes are of an earlier save.

## When it can be wrong
- The step in the folder's name and the step of the record count differently, by one for example.

## Seen in
NVIDIA-NeMo/RL#3312 (evaluation in the job was fine, and its saves were old)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.runs.saves.save import Save
from ckptcheck.runs.saves.save_series import SaveSeries
from ckptcheck.text.formatting import count


@rule("SER013", "unlike-watched", severity="error", on="saves", when=lambda series: series.watched is not None)
def check(series: SaveSeries) -> Iterator[Problem]:
    watched = series.watched or {}
    if not watched:
        raise Skip(
            "the record has no identity of the weights: let ckptcheck.watch digest all tensors at the steps that are saved"
        )
    compared = False
    for strand in series.strands:
        saves = [save for save in strand.saves if save.identity and save.number in watched]
        compared = compared or bool(saves)
        unlike = [save for save in saves if save.identity != watched[save.number]]
        known = {identity: step for step, identity in watched.items()}
        if unlike and len(unlike) == len(saves) and not any(save.identity in known for save in unlike):
            yield _warn(unlike)
            continue
        for save in unlike:
            step = known.get(save.identity)
            what = f"; it is what the trainer held at step {step}" if step is not None else ""
            yield Problem(
                f"{save.name} has the identity {save.identity[:12]}, and the live trainer had"
                f" {watched[save.number][:12]} at step {save.number}{what}",
                file=save.name,
                hint="do not use this save: save again, without asynchronous saving; if every save is as many steps off, the record"
                " counts steps otherwise"
                if step is not None
                else "do not use this save: it was damaged, or copied while the trainer went on; save again, without asynchronous"
                " saving",
            )
    if not compared:
        raise Skip("no step of the record was saved, or no save has an identity")


def _warn(unlike: list[Save]) -> Problem:
    return Problem(
        f"none of {count(len(unlike), 'save')} equals what the live trainer held at that step: {unlike[-1].name} has the identity"
        f" {unlike[-1].identity[:12]}",
        file=unlike[-1].name,
        severity="warning",
        hint="check whether the trainer saves the dtype that it sends; name a checkpoint with --like for a Megatron run",
    )
