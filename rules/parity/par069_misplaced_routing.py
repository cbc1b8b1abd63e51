"""A record of expert routing has other layers or tokens than the model or the other side.

## What it checks
- At least one layer names an expert other than 0.
- With `--checkpoint`: the record has one row for each layer of the model, or one for each layer with experts; and as many choices
  as config.json says. Each layer with experts names experts other than 0, and dense layers name none.
- Without it: the last layers do not hold only zeros, if an earlier layer names experts. If they do, it is a warning.
- If both sides recorded routing, the rule compares the share of equal sets of experts as recorded with the share after a shift of
  the trainer's rows by up to 3 layers or by one token. It reports a shift that makes half of the sets equal, and three times as
  many as without it.

## Why it matters
Trainers take row l for layer l. A row too many (a layer of multi-token prediction), one too few (the dense first layers left
out), or a stage of a pipeline whose rows were not gathered gives every layer the experts of another one, or expert 0 for all
tokens. Tokens shift where one side drops the row of the first token instead of the last; each token then gets the experts of its
neighbour.

## How to fix
Let the engine report the layers that the trainer counts: all layers of the model without those of multi-token prediction. Gather
the rows of all pipeline stages. Give token t the row of token t.

## When it can be wrong
Without `--checkpoint` the last layers may be dense. With it, a record of few tokens in a model with few experts may name expert 0
alone. The checkpoint is not the one that drew the tokens. Sequences of one repeated token have equal rows at neighbouring tokens.

## Seen in
THUDM/slime `validate_rollout_routed_experts_for_replay` (all zero for layers of later pipeline stages; other shapes are refused)
and slime/backends/megatron_utils/actor.py (`fill_routing_replay` takes row l for layer l, dense ones counted),
NovaSky-AI/SkyRL#1908 (metadata and padding out of line)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.rollouts.metrics.routing_record import RoutingRecord
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.rollouts.sampling_checkpoint import ExpertLayout
from ckptcheck.text.formatting import count, format_layers

LEAST = 16
"""Fewest rows that show a layer without experts."""


@rule(
    "PAR069",
    "misplaced-routing",
    severity="error",
    on="rollouts",
    when=lambda evidence: bool(evidence.routing_records),
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    for record in evidence.routing_records:
        layout = evidence.expert_layout
        if layout is not None and (problem := _find_other_shape(record, layout)) is not None:
            yield problem
        elif record.due_rows < LEAST:
            continue
        elif not record.captured_layers.any():
            if not record.is_all_missing:
                text = f"{count(record.due_rows, 'row')} name expert 0 and no other, in all {count(record.shape[0], 'layer')}"
                yield Problem(text, key=record.column, hint="switch the engine's report of routed experts on")
        elif layout is not None:
            yield from _find_misplaced(record, layout)
        else:
            yield from _find_empty_end(record)
    if len(evidence.routing_records) > 1:
        yield from _find_shift(evidence)


def _find_other_shape(record: RoutingRecord, layout: ExpertLayout) -> Problem | None:
    layers, choices = record.shape
    if layers not in (layout.layers, len(layout.routed_layers)):
        text = f"it has rows for {count(layers, 'layer')}, and the model has {layout.layers}"
        if len(layout.routed_layers) != layout.layers:
            text += f", {len(layout.routed_layers)} of them with experts"
        hint = "record the layers that the trainer counts"
        if layout.mtp_layers and layers - layout.mtp_layers in (layout.layers, len(layout.routed_layers)):
            text += f": the rows of {count(layout.mtp_layers, 'layer')} of multi-token prediction are among them"
            hint = "leave the layers of multi-token prediction out"
        return Problem(text, key=record.column, hint=hint)
    if layout.choices is not None and choices != layout.choices:
        text = f"its rows have {count(choices, 'choice')}, and the model sends a token to {count(layout.choices, 'expert')}"
        return Problem(text, key=record.column, hint="leave shared experts and padding out")
    return None


def _find_misplaced(record: RoutingRecord, layout: ExpertLayout) -> Iterator[Problem]:
    captured = set(record.captured_layers.nonzero()[0].tolist())
    routed = set(layout.routed_layers) if record.shape[0] == layout.layers else set(range(record.shape[0]))
    empty, foreign = sorted(routed - captured), sorted(captured - routed)
    if empty and foreign:
        text = f"the record names experts in {format_layers(foreign)}, where the model has none, and none but 0 in"
        text += f" {format_layers(empty)}, where it has some: the layers are shifted"
        yield Problem(text, key=record.column, hint="count layers as the trainer does, dense ones included")
    elif empty:
        text = f"{format_layers(empty)} {'has' if len(empty) == 1 else 'have'} experts, and the record names none but 0 there"
        yield Problem(text, key=record.column, hint="gather the rows of all pipeline stages")


def _find_empty_end(record: RoutingRecord) -> Iterator[Problem]:
    captured = record.captured_layers.nonzero()[0].tolist()
    last, layers = captured[-1], record.shape[0]
    between = captured[-1] - captured[0] + 1 == len(captured)
    if last < layers - 1 and between and len(captured) > 1:
        empty = format_layers(range(last + 1, layers))
        text = f"the record names no expert but 0 in {empty}, and others in all layers from {captured[0]} to {last}"
        hint = "gather the rows of all pipeline stages, or pass --checkpoint to say which layers have experts"
        yield Problem(text, key=record.column, hint=hint, severity="warning")


def _find_shift(evidence: RolloutEvidence) -> Iterator[Problem]:
    shift = evidence.routing_shift
    if shift is None:
        raise Skip("the two sides recorded different numbers of experts for a token")
    if not shift.is_certain:
        return
    by = shift.layers or shift.tokens
    what = "layer" if shift.layers else "token"
    engine, trainer = (by, 0) if by > 0 else (0, -by)
    yield Problem(
        f"{shift.agreement:.0%} of the sets of experts are equal when the trainer's {what} {trainer} is the engine's {what}"
        f" {engine}, and {shift.unshifted:.0%} as recorded: one side is shifted by {count(abs(by), what)}",
        key="trainer_routing",
        hint=f"count {what}s alike on both sides",
    )
