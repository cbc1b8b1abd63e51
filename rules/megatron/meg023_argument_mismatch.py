"""A weight does not have the shape that the saved arguments give it.

## What it checks
The arguments are compared with:

- the columns of the embedding (`hidden_size`)
- the rows of `linear_qkv` (heads and groups times `kv_channels`)
- the rows of a dense `linear_fc1` (`ffn_hidden_size`, twice under `swiglu`)
- the rows of the routers (`num_experts`), and whether there are experts at all
- the number of layers, if there are more than `num_layers`
- the rows of the token embedding and of the output layer (`padded_vocab_size`); without that argument, both have the same number
  of rows. An output layer of a single row is a critic's head and is left out.

## Why it matters
- Converters build the other side's model from the arguments. They stop at a wrong shape or, where heads and groups are swapped,
  split `linear_qkv` at the wrong rows.
- Megatron accepts different row counts while it loads, because padding depends on the number of ranks. It silently cuts off or
  pads a checkpoint of another vocabulary, and the last tokens get rows that were never trained.

## How to fix
- Use common.pt and the data of the same save.
- Save with the vocabulary of the tokenizer, and give the converter the padded size.

## When it can be wrong
- Attention with gates or latent projections has other rows; it is left out where the arguments say so.
- The vocabulary may have been extended after the arguments were written.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#1514 (arguments that a converter cannot use); NVIDIA-NeMo/Megatron-Bridge#5375, #625, #1853
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.megatron.required_weights import FC1, FC2, expert_layers, is_plain
from ckptcheck.checkpoint.megatron.structure import EMBEDDING, OUTPUT, positive_argument
from ckptcheck.text.formatting import count, format_layers, format_shape

HINT = "use common.pt and the data of the same save; if they are, what wrote them mistook a shape or an argument"


@rule(
    "MEG023",
    "argument-mismatch",
    severity="error",
    on="megatron",
    when=lambda run: EMBEDDING in run.weights or (bool(run.args) and bool(run.structure.layers)),
)
def check(run: Megatron) -> Iterator[Problem]:
    if run.args and run.structure.layers:
        yield from _compare_layers(run)
    if EMBEDDING in run.weights:
        yield from _compare_rows(run)


def _compare_layers(run: Megatron) -> Iterator[Problem]:
    args, layers = run.args, run.structure.layers
    first = min(layers, default=0)
    heads = positive_argument(args, "num_attention_heads")
    hidden = positive_argument(args, "hidden_size")
    groups = positive_argument(args, "num_query_groups") if args.get("group_query_attention") is True else heads
    channels = positive_argument(args, "kv_channels") or (hidden // heads if hidden and heads else None)
    ffn_size = positive_argument(args, "ffn_hidden_size")
    plain = not args.get("multi_latent_attention") and not args.get("attention_output_gate")
    expected: list[tuple[str, int, int | None, str]] = [(EMBEDDING, 1, hidden, "hidden_size")]
    if heads and groups and channels and plain:
        expected_rows = (heads + 2 * groups) * channels
        expected.append(
            (
                f"decoder.layers.{first}.self_attention.linear_qkv.weight",
                0,
                expected_rows,
                "heads, groups and kv_channels",
            )
        )
    if ffn_size and type(args.get("swiglu")) is bool:
        expected_rows = ffn_size * (2 if args["swiglu"] else 1)
        expected.append(
            (f"decoder.layers.{first}.mlp.linear_fc1.weight", 0, expected_rows, "ffn_hidden_size and swiglu")
        )
    for name, axis, expected_size, source in expected:
        weight = run.weights.get(name)
        if weight is not None and expected_size and len(weight.shape) == 2 and weight.shape[axis] != expected_size:
            yield Problem(
                f"its shape is {format_shape(weight.shape)}, but {source} of the arguments give {expected_size:,} "
                f"{('rows', 'columns')[axis]}",
                file=run.finding_file,
                key=name,
                hint=HINT,
            )
    yield from _experts(run)
    number = positive_argument(args, "num_layers")
    if number is not None and (more := {layer for layer in layers if layer >= number}):
        yield Problem(
            f"the model has {count(len(layers), 'layer')}, but num_layers is {number}: no rank loads {format_layers(more)}",
            file=run.finding_file,
            hint=HINT,
        )


def _experts(run: Megatron) -> Iterator[Problem]:
    layers = run.structure.layers
    routed = expert_layers(run.args, layers) if is_plain(run.args, layers) else None
    if routed is None:
        return
    expected_rows = positive_argument(run.args, "num_experts")
    dense = [layer for layer in sorted(routed) if layers[layer] & {*FC1, *FC2}]
    if not expected_rows and run.structure.experts:
        text = f"{count(len(run.structure.experts), 'layer has', 'layers have')} experts, but num_experts is not set"
        yield Problem(text, file=run.finding_file, key="num_experts", hint=HINT)
    elif expected_rows and dense and not run.structure.experts:
        are = count(len(dense), "layer that should have experts is", "layers that should have experts are")
        text = f"num_experts is {expected_rows}, but {are} dense"
        yield Problem(text, file=run.finding_file, key="num_experts", hint=HINT)
    for layer, names in layers.items():
        router = run.weights.get(f"decoder.layers.{layer}.mlp.router.weight") if "mlp.router.weight" in names else None
        if expected_rows and router is not None and router.shape[:1] != (expected_rows,):
            yield Problem(
                f"its shape is {format_shape(router.shape)}, but num_experts is {expected_rows}",
                file=run.finding_file,
                key=f"decoder.layers.{layer}.mlp.router.weight",
                hint=HINT,
            )
            return


def _compare_rows(run: Megatron) -> Iterator[Problem]:
    expected = positive_argument(run.args, "padded_vocab_size")
    rows = {
        name: run.weights[name].shape[0]
        for name in (EMBEDDING, OUTPUT)
        if name in run.weights and run.weights[name].shape
    }
    rows = {name: number for name, number in rows.items() if name == EMBEDDING or number > 1}
    for name, number in rows.items():
        if expected is not None and number != expected:
            yield Problem(
                f"it has {count(number, 'row')}, but padded_vocab_size is {expected:,}: "
                "Megatron silently cuts it off or pads it",
                file=run.finding_file,
                key=name,
                hint="save with the vocabulary of the tokenizer",
            )
    if expected is None and len(set(rows.values())) > 1:
        yield Problem(
            f"it has {rows[OUTPUT]:,} rows, but the embedding has {rows[EMBEDDING]:,}",
            file=run.finding_file,
            key=OUTPUT,
            hint="save with the vocabulary of the tokenizer",
        )
