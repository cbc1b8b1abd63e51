"""The saves of a series are not all of one run.

## What it checks
- All saves have the same tensors with the same shapes and dtypes, and the same settings of the model.
- No save is far from both its neighbours, while these two are near each other.

## Why it matters
- Two jobs wrote into one folder, or one was started with another configuration. Who resumes, averages or evaluates the series takes
  weights of different models for one.

## How to fix
- Give each run a folder of its own. `ckptcheck diff` between two saves says how both are related.

## When it can be wrong
- A run that changed its dtype or its vocabulary on purpose when it was resumed: then the saves before and after are two series.

## Seen in
nyu-mll/jiant#5 (a second run with other settings overwrites the first saves of a folder, and the next one resumes from the
last, which is of the first run), PriorLabs/TabPFN#814
"""

from collections.abc import Iterator
from itertools import pairwise

from ckptcheck import Problem, rule
from ckptcheck.compare.matching.name_groups import group_names
from ckptcheck.runs.saves.save import Save
from ckptcheck.runs.saves.save_series import SaveSeries
from ckptcheck.text.formatting import count, join_truncated


@rule("SER012", "mixed-runs", severity="error", on="saves")
def check(series: SaveSeries) -> Iterator[Problem]:
    series.require_intervals()
    for strand in series.strands:
        for before, after in pairwise(strand.digested):
            yield from _compare_forms(before, after)
        for save, before, after, distance, between in strand.foreign:
            yield Problem(
                f"{save.name} is {distance:.2g} of the weights' size away from {before.name} and {after.name}, which are"
                f" {between:.2g} apart: it is not between them in training",
                file=save.name,
                hint=f"it is of another run, or of a branch that was given up: ckptcheck diff {before.address} {save.address}",
            )


def _compare_forms(before: Save, after: Save) -> Iterator[Problem]:
    gone, new = before.weights.keys() - after.weights.keys(), after.weights.keys() - before.weights.keys()
    common = before.weights.keys() & after.weights.keys()
    reshaped = sorted(name for name in common if before.weights[name].shape != after.weights[name].shape)
    recast = sorted(name for name in common - set(reshaped) if before.weights[name].dtype != after.weights[name].dtype)
    changes = []
    if gone:
        changes.append(
            f"{count(len(gone), 'tensor')} of {before.name} {'is' if len(gone) == 1 else 'are'} gone: {group_names(sorted(gone))}"
        )
    if new:
        changes.append(
            f"{count(len(new), 'tensor')} {'is' if len(new) == 1 else 'are'} new: {group_names(sorted(new))}"
        )
    if reshaped:
        name = reshaped[0]
        changes.append(
            f"{count(len(reshaped), 'tensor has', 'tensors have')} another shape: {name} was"
            f" {list(before.weights[name].shape)} in {before.name} and is {list(after.weights[name].shape)}"
        )
    if changes:
        yield Problem(
            f"{after.name}: {'; '.join(changes)}",
            file=after.name,
            hint="two runs wrote into this folder, or one was started with another configuration: keep them apart"
            + ("; if neither, the save lacks a part" if gone and not reshaped else ""),
            names=(*sorted(gone), *sorted(new), *reshaped),
        )
    if recast and not changes:
        name = recast[0]
        yield Problem(
            f"{after.name}: {count(len(recast), 'tensor has', 'tensors have')} another dtype: {name} was"
            f" {before.weights[name].dtype} in {before.name} and is {after.weights[name].dtype}",
            file=after.name,
            severity="warning",
            hint="nothing can be compared across them; keep the saves in one dtype",
            names=tuple(recast),
        )
    settings = [
        f"{key} {before.config[key]} → {after.config[key]}"
        for key in before.config.keys() & after.config.keys()
        if before.config[key] != after.config[key]
    ]
    if settings:
        yield Problem(
            f"{after.name}: {count(len(settings), 'setting')} of the model {'is' if len(settings) == 1 else 'are'} other than in"
            f" {before.name}: {join_truncated(sorted(settings))}",
            file=after.name,
            severity="warning",
            hint="two runs wrote into this folder, or the model was changed in the middle of one",
        )
