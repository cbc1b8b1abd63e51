"""A save holds the weights, or the optimizer's moments, of an earlier save.

## What it checks
- No two saves of a run at different steps hold the same weights, bit for bit.
- No two saves hold the same moments, bit for bit, where their weights differ. Moments that are zero altogether say nothing.

## Why it matters
- An asynchronous save copies the weights while the trainer continues. If it copies from memory that was moved or reused, it
  writes the bytes of an earlier save again and reports success. You then resume from, evaluate or ship the older model.
- Adam's moments change with every step, also without a gradient. Equal moments are those of an earlier step: the trainer
  resumes with new weights and an old direction and scale for each of them, and nothing reports it.

## How to fix
- Switch off asynchronous saving, or the offloading of weights or optimizer during a save, and save again. The later of these
  saves lack the training since the first: resume from the first, and not from the last.

## When it can be wrong
- The learning rate was zero, or a critic was warmed up while the actor rested. Where the saves say so (a scheduler, the
  trainer's log, or moments that are still all zero) the finding is only information. If they do not, use `--ignore SER001`.
- The weights were replaced between two saves without training, by a merge or an average.

## Seen in
NVIDIA-NeMo/RL#3312 (steps 90, 110 and 120 bit for bit the same, asynchronous saves in a colocated job), NVIDIA-NeMo/RL#4183
(moments of an earlier step), NVIDIA/Megatron-LM#4378
"""

from collections.abc import Iterable, Iterator

from ckptcheck import Problem, rule
from ckptcheck.runs.saves.save import Save, digest_records, is_rate_zero
from ckptcheck.runs.saves.save_series import SaveSeries
from ckptcheck.text.formatting import count, join_words


@rule("SER001", "repeated-save", severity="error", on="saves")
def check(series: SaveSeries) -> Iterator[Problem]:
    series.require_intervals()
    for strand in series.strands:
        groups: dict[str, list[Save]] = {}
        for save in strand.digested:
            groups.setdefault(digest_records(save.weights), []).append(save)
        for first, *others in groups.values():
            if others:
                yield _describe(first, others)
        yield from _find_repeated_moments(strand.digested)


def _describe(first: Save, others: list[Save]) -> Problem:
    tensors = tuple(first.weights)
    names = join_words([save.name for save in others])
    holds = "hold" if len(others) > 1 else "holds"
    message = f"{names} {holds} the weights of {first.name}, bit for bit ({count(len(first.weights), 'tensor')})"
    moments = [save.moments for save in (first, *others)]
    is_repeated = all(moments) and len({digest_records(moment) for moment in moments}) == 1
    has_stepped = any(not record.zero for moment in moments for record in moment.values())
    if not (is_repeated and has_stepped) and all(is_rate_zero(first, save) for save in others):
        return Problem(
            f"{message}; the learning rate was zero",
            file=others[0].name,
            severity="info",
            hint="nothing to do if that was intended",
            names=tensors,
        )
    if is_repeated and not has_stepped:
        return Problem(
            f"{message}; all moments of the optimizer are zero: it has not taken a step",
            file=others[0].name,
            severity="info",
            hint="nothing to do if this part was frozen on purpose",
            names=tensors,
        )
    if all(moments):
        message += ", and its moments too" if is_repeated else ", although the moments of the optimizer moved"
    return Problem(
        message,
        file=others[0].name,
        hint=f"do not resume from {others[-1].name}: what was trained after {first.name} is not in it; if the"
        " trainer's log shows steps without an update (a rate of zero, gradients that overflow), fix those; else save again"
        " without asynchronous saving",
        names=tensors,
    )


def _find_repeated_moments(saves: Iterable[Save]) -> Iterator[Problem]:
    """Yield the saves with the moments of an earlier one under other weights."""
    earlier: dict[str, Save] = {}
    for save in saves:
        moments = save.moments
        if all(record.zero for record in moments.values()):
            continue
        first = earlier.setdefault(digest_records(moments), save)
        if first is not save and digest_records(first.weights) != digest_records(save.weights):
            yield Problem(
                f"{save.name} holds the moments of {first.name}, bit for bit ({count(len(moments), 'tensor')}), although"
                " the weights moved",
                file=save.name,
                hint=f"do not resume from {save.name}, unless its weights were replaced without training (a merge, an average);"
                " save again without asynchronous saving",
                names=tuple(moments),
            )
