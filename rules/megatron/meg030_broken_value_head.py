"""The value head of a critic has a wrong shape, place or content, or stands beside an output layer.

## What it checks
- A value head (`value_head.weight`, `v_head.summary.weight`) has the shape `[1, hidden_size]`.
- A checkpoint with a value head has no `output_layer.weight` with more than one row.
- In a legacy checkpoint, all ranks of the last pipeline stage hold a value head, in their last virtual chunk, and no other rank
  holds one. torch_dist does not distinguish stages.
- The head, or an output layer of one row, is not the first row of the output layer or of the embedding, byte for byte.

## Why it matters
- Loaders stop at the shape, or reshape it. `[hidden, 1]` is a transposed head: a Linear stores [outputs, inputs]. `[8, hidden/8]`
  is a head that was saved in its tensor-parallel layout: the right number of elements in the wrong positions. A sharded optimizer
  that did not gather its parameters leaves an empty head.
- A critic replaces the output layer. A remaining one takes vocabulary × hidden elements on every rank and in every save, gets no
  gradient, and makes converters treat the critic as a language model.
- A head on another stage gets hidden states from the middle of the model, or is never called. If a constructor reads the stage
  flags after the parent class removed them, every stage creates a head, or none does.
- A head stored as `output_layer` loads from a language model's checkpoint without an error, because row counts may differ there
  due to vocabulary padding: it becomes the row of token 0, and the critic's first values are that token's logits.

## How to fix
- Gather the head before saving it. Tensor parallelism does not split it.
- Set `output_layer` to None where the value head is created. Give the head a name of its own (`value_head`), and allow only that
  name to be missing when loading a language model.
- Create the head only where `post_process` is true, and read that flag before calling the parent's constructor.

## When it can be wrong
- A critic may have several values per token.
- A model that is both policy and critic needs both.

## Seen in
Open-Reasoner-Zero#63; the design of ROLL's Megatron critic (`output_layer = None` on the last stage, flags stored before
super().__init__); a critic with its head in the output_layer slot, megatron-core 0.16.1, loaded from a language model
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.heads import explain_head_shape
from ckptcheck.checkpoint.megatron.legacy import rank_position
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.megatron.structure import EMBEDDING, OUTPUT, VALUE_HEADS, positive_argument
from ckptcheck.text.formatting import format_shape

HINT = "create the head only where post_process is true, and read that flag before the parent's constructor"


@rule(
    "MEG030",
    "broken-value-head",
    severity="error",
    on="megatron",
    when=lambda run: any(
        name.endswith(VALUE_HEADS) or (name == OUTPUT and weight.shape[:1] == (1,))
        for name, weight in run.weights.items()
    ),
)
def check(run: Megatron) -> Iterator[Problem]:
    yield from _find_wrong_shape(run)
    if any(name.endswith(VALUE_HEADS) for name in run.weights):
        yield from _find_output_layer(run)
        if run.form == "legacy":
            yield from _find_misplaced(run)
    yield from _find_copied(run)


def _find_wrong_shape(run: Megatron) -> Iterator[Problem]:
    embedding = run.weights.get(EMBEDDING)
    hidden = positive_argument(run.args, "hidden_size") or (
        embedding.shape[1] if embedding and len(embedding.shape) == 2 else None
    )
    for name, head in run.weights.items():
        if not name.endswith(VALUE_HEADS) or hidden is None or head.shape == (1, hidden):
            continue
        if 0 in head.shape:
            text, layout = f"the head is empty ({format_shape(head.shape)}): its parameters were not gathered", None
        else:
            layout = explain_head_shape(head.shape, (1, hidden))
            text = f"the shape of the head is {format_shape(head.shape)}, not {format_shape((1, hidden))}"
        yield Problem(
            f"{text}; {layout.text}" if layout else text,
            file=run.finding_file,
            key=head.key,
            hint=layout.hint if layout else "gather the head before saving it",
        )


def _find_output_layer(run: Megatron) -> Iterator[Problem]:
    head = run.weights.get(OUTPUT)
    if head is not None and len(head.shape) == 2 and head.shape[0] > 1:
        yield Problem(
            f"the critic has a value head, but also the output layer {format_shape(head.shape)}",
            file=run.finding_file,
            key=head.key,
            hint="set output_layer to None where the value head is created",
            severity="warning",
        )


def _find_misplaced(run: Megatron) -> Iterator[Problem]:
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


def _find_copied(run: Megatron) -> Iterator[Problem]:
    """Yield the heads that are the first row of the vocabulary."""
    run.require_value_reader()
    for name, head in run.weights.items():
        if not (name.endswith(VALUE_HEADS) or name == OUTPUT) or len(head.shape) != 2 or head.shape[0] != 1:
            continue
        for other in (OUTPUT, EMBEDDING):
            table = run.weights.get(other)
            if table is None or other == name or len(table.shape) != 2 or table.shape[1] != head.shape[1]:
                continue
            if table.dtype != head.dtype or not table.shape[0]:
                continue
            row = run.read(other, [slice(0, 1)])
            if row.any() and row.tobytes() == run.read(name).tobytes():
                yield Problem(
                    f"it is row 0 of {table.key}, byte for byte: a language model was loaded into the place of the head",
                    file=run.finding_file,
                    key=head.key,
                    hint="give the head a name of its own, and initialize it again",
                )
