"""A layer lacks what its sibling layers have.

## What it checks
The layers are compared with each other, whatever their names are, so the rule also covers plain torch.distributed.checkpoint
folders with Hugging Face names, hybrid models, and checkpoints without arguments:
- A layer that has only a part of the tensors of at least two siblings is incomplete. Several layers that lack the same
  tensors are incomplete if three times as many layers have them.
- A whole component may be missing only if all other layers agree and there are at least three, or if the arguments say which
  layers are alike. If neither holds, the rule reports only incomplete components.
- The rule does not repeat findings of MEG018.

Where layers have the names of Hugging Face models (`layers.0.self_attn.…`):
- A layer with three of `q_proj`, `k_proj`, `v_proj` and `o_proj`, or two of `gate_proj`, `up_proj` and `down_proj`, has the
  remaining one too, if any layer has it.
- No layer number below the highest is missing.
- There is a token embedding and, if every layer begins with `input_layernorm`, a final norm.
- Nothing in such a folder says how many layers there should be, so the loss of the last layers is not found.

## Why it matters
torch.distributed.checkpoint stops at a key that it needs and does not find. With `allow_partial_load`, and in converters, it
continues with uninitialized memory.

## How to fix
Save again with all ranks, or use an earlier iteration.

## When it can be wrong
An architecture may omit something from one layer by design. Known cases are excluded: a norm that only the first layer lacks
(ModernBERT), layers that share keys and values with earlier ones (Gemma 3n) or use keys as values (Gemma 4), and
adapters. A job that saves only the weights that it trains omits the rest. `--ignore MEG036` silences it.

## Seen in
verl-project/verl#2086, NVIDIA-NeMo/RL#2124 (keys lost in a conversion)
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.components import Components
from ckptcheck.checkpoint.layout import LAYER_NAMES, Stack
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.megatron.required_weights import ADAPTER, expert_layers, is_plain, lacking
from ckptcheck.checkpoint.megatron.structure import LAYER
from ckptcheck.checkpoint.packing import unquantized_names
from ckptcheck.checkpoint.siblings import Names, find_incomplete_layers
from ckptcheck.checkpoint.tensor import Tensor
from ckptcheck.text.formatting import count, format_layers, format_ranges, join_truncated

COMPONENTS = (
    tuple(f"self_attn.{part}_proj.weight" for part in "qkvo"),
    tuple(f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
)
SHARED = re.compile(r"(^|\.)[kv]_(proj|norm)\.")
NORM = re.compile(r"(norm|(^|\.)ln_?\w*)\.weight$", re.IGNORECASE)
QUANTIZER = re.compile(r"quantizer|_amax|_extra_state")
HINT = "save again with all ranks, or use an earlier iteration"


@rule(
    "MEG036",
    "incomplete-layer",
    severity="error",
    on="megatron",
    when=lambda run: bool(run.weights) and not any(ADAPTER.search(name) for name in run.weights),
)
def check(run: Megatron) -> Iterator[Problem]:
    layout = run.layout
    for numbered in layout.stacks.values():
        if numbered.prefix.rpartition(".")[2] in LAYER_NAMES:
            yield from _layers(run, numbered)
    outside = {name: run.weights[name] for name in layout.outside}
    anatomy = Components(None, layout, {name: Tensor(w.dtype, w.shape, (0, w.nbytes)) for name, w in outside.items()})
    stack = anatomy.stack
    if run.args or stack is None or anatomy.is_draft or not _is_named_as_hugging_face_does(stack):
        return
    if gap := set(range(max(stack.layers))) - stack.layers.keys():
        missing = f"{count(len(gap), 'layer')} of {stack.prefix} {'is' if len(gap) == 1 else 'are'} missing ({format_ranges(gap)})"
        yield Problem(missing, file=run.finding_file, key=stack.full_name(min(gap)), hint=HINT)
    around = stack.prefix.rpartition(".")[0]
    outer_names = [name for name in outside if name.startswith(around)]
    # One for each codebook (Musicgen).
    numbered_ones = any("emb" in prefix for prefix in layout.stacks)
    if anatomy.embedding is None and not numbered_ones:
        yield _missing_outside_layers(run, stack, f"{around}.embed_tokens.weight".lstrip("."), "token embedding")
    has_final_norm = around.rpartition(".")[2] in ("model", "language_model", "") and all(
        "input_layernorm.weight" in names for names in stack.layers.values()
    )
    if has_final_norm and not any(NORM.search(name) for name in outer_names):
        yield _missing_outside_layers(run, stack, f"{around}.norm.weight".lstrip("."), "final norm")


def _missing_outside_layers(run: Megatron, stack: Stack, name: str, what: str) -> Problem:
    return Problem(f"there is no {what} beside {stack.prefix}", file=run.finding_file, key=name, hint=HINT)


def _is_named_as_hugging_face_does(stack: Stack) -> bool:
    """Whether the layers have the names that most models of transformers have."""
    names = {name.partition(".")[0] for layer_names in stack.layers.values() for name in layer_names}
    return stack.prefix.endswith("layers") and "self_attn" in names and len(stack.layers) > 1


def _layers(run: Megatron, stack: Stack) -> Iterator[Problem]:
    layers = {
        layer: unquantized_names(name for name in names if not QUANTIZER.search(name))
        for layer, names in stack.layers.items()
    }
    own = LAYER.match(stack.full_name(min(layers), "x")) is not None
    layer_kinds: dict[int, str] = {}
    if own and is_plain(run.args, run.structure.layers):
        routed = expert_layers(run.args, layers)
        layer_kinds = {} if routed is None else {layer: "routed" if layer in routed else "dense" for layer in layers}
    alike = bool(layer_kinds) or (len(layers) > 3 and len(set(layers.values())) == 2)
    reported = lacking(run.args, run.structure) if own else {}
    layers_by_missing: dict[Names, dict[int, list[int]]] = {}
    for layer, (missing, having) in find_incomplete_layers(layers, layer_kinds, alike=alike).items():
        rest = missing - reported.get(layer, set())
        if rest and not _is_omitted_by_design(stack, layers, layer, rest, run):
            layers_by_missing.setdefault(rest, {})[layer] = having
    for layer, names in layers.items():
        missing_parts = frozenset(name for part in COMPONENTS for name in _find_missing_part(part, names, layers))
        if missing_parts and not any(layer in incomplete_layers for incomplete_layers in layers_by_missing.values()):
            layers_by_missing.setdefault(missing_parts, {})[layer] = [
                other for other, other_names in layers.items() if missing_parts <= other_names
            ]
    for missing, incomplete_layers in layers_by_missing.items():
        first = min(incomplete_layers)
        yield Problem(
            f"{stack.prefix}: {format_layers(incomplete_layers)} "
            f"{'lacks' if len(incomplete_layers) == 1 else 'lack'} {join_truncated(missing)}, "
            f"which {format_layers(incomplete_layers[first])} {'has' if len(incomplete_layers[first]) == 1 else 'have'}",
            file=run.finding_file,
            key=stack.full_name(first, min(missing)),
            hint=HINT,
        )


def _find_missing_part(part: tuple[str, ...], names: Names, layers: dict[int, Names]) -> list[str]:
    """Return the tensor that a layer lacks of a component, if it has all others of it and another layer has that one."""
    missing = [name for name in part if name not in names]
    if len(missing) != 1:
        return []
    usual = [other for other, other_names in layers.items() if other_names.issuperset(part)]
    if SHARED.search(missing[0]) and len(usual) < len(layers) - 1:
        return []
    return missing if usual else []


def _is_omitted_by_design(stack: Stack, layers: dict[int, Names], layer: int, missing: Names, run: Megatron) -> bool:
    """Whether an architecture omits these by design: a norm or scale of the first layer, keys and values that layers share."""
    having = [other for other, names in layers.items() if missing <= names]
    if all(SHARED.search(name) for name in missing):
        return layer == max(layers) or len(having) < len(layers) - 1
    tensors = [run.weights.get(stack.full_name(having[0], name)) for name in missing] if having else []
    return layer == 0 and all(tensor is not None and len(tensor.shape) < 2 for tensor in tensors)
