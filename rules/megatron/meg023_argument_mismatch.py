"""Weights have another shape than the saved arguments give them.

## What it checks
Against the arguments: the columns of the embedding (`hidden_size`), the rows of `linear_qkv` (heads and groups times
`kv_channels`), of a dense `linear_fc1` (`ffn_hidden_size`, twice with `swiglu`), the rows of the routers (`num_experts`),
whether there are experts at all, and the number of layers, where there are more than `num_layers`.

## Why it matters
Converters build the other side's model from the arguments: they stop at the shapes, or, where heads and groups are
exchanged, take the rows of `linear_qkv` apart in the wrong places.

## How to fix
Take common.pt and the data from the same save.

## When it can be wrong
Attention with gates or latent projections has other rows and is left out where the arguments say so. `--ignore MEG023`
silences it.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#1514 (arguments that a converter cannot use)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.required import FC1, FC2, expert_layers, is_plain
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.checkpoint.megatron.structure import EMBEDDING, promised
from ckptcheck.phrase import count, ranges, shape

HINT = "take common.pt and the data from the same save"


@rule(
    "MEG023",
    "argument-mismatch",
    severity="error",
    on="megatron",
    when=lambda run: bool(run.args) and bool(run.structure.layers),
)
def check(run: Megatron) -> Iterator[Problem]:
    args, layers = run.args, run.structure.layers
    first = min(layers, default=0)
    heads = promised(args, "num_attention_heads")
    hidden = promised(args, "hidden_size")
    groups = promised(args, "num_query_groups") if args.get("group_query_attention") is True else heads
    channels = promised(args, "kv_channels") or (hidden // heads if hidden and heads else None)
    wide = promised(args, "ffn_hidden_size")
    plain = not args.get("multi_latent_attention") and not args.get("attention_output_gate")
    expected: list[tuple[str, int, int | None, str]] = [(EMBEDDING, 1, hidden, "hidden_size")]
    if heads and groups and channels and plain:
        due = (heads + 2 * groups) * channels
        expected.append(
            (f"decoder.layers.{first}.self_attention.linear_qkv.weight", 0, due, "heads, groups and kv_channels")
        )
    if wide and type(args.get("swiglu")) is bool:
        due = wide * (2 if args["swiglu"] else 1)
        expected.append((f"decoder.layers.{first}.mlp.linear_fc1.weight", 0, due, "ffn_hidden_size and swiglu"))
    for name, axis, wanted, why in expected:
        weight = run.weights.get(name)
        if weight is not None and wanted and len(weight.shape) == 2 and weight.shape[axis] != wanted:
            yield Problem(
                f"it is {shape(weight.shape)}, and with {why} of the arguments it has {wanted:,} {('rows', 'columns')[axis]}",
                file=run.place,
                key=name,
                hint=HINT,
            )
    yield from _experts(run)
    number = promised(args, "num_layers")
    if number is not None and (more := {layer for layer in layers if layer >= number}):
        yield Problem(
            f"the model has {count(len(layers), 'layer')}, and num_layers is {number}: layers {ranges(more)} are nobody's",
            file=run.place,
            hint=HINT,
        )


def _experts(run: Megatron) -> Iterator[Problem]:
    layers = run.structure.layers
    routed = expert_layers(run.args, layers) if is_plain(run.args, layers) else None
    if routed is None:
        return
    due = promised(run.args, "num_experts")
    dense = [layer for layer in sorted(routed) if layers[layer] & {*FC1, *FC2}]
    if not due and run.structure.experts:
        text = f"{count(len(run.structure.experts), 'layer has', 'layers have')} experts, and num_experts is not set"
        yield Problem(text, file=run.place, key="num_experts", hint=HINT)
    elif due and dense and not run.structure.experts:
        are = count(len(dense), "layer that should have experts is", "layers that should have experts are")
        text = f"num_experts is {due}, and {are} dense"
        yield Problem(text, file=run.place, key="num_experts", hint=HINT)
    for layer, names in layers.items():
        router = run.weights.get(f"decoder.layers.{layer}.mlp.router.weight") if "mlp.router.weight" in names else None
        if due and router is not None and router.shape[:1] != (due,):
            yield Problem(
                f"it is {shape(router.shape)}, and num_experts is {due}",
                file=run.place,
                key=f"decoder.layers.{layer}.mlp.router.weight",
                hint=HINT,
            )
            return
