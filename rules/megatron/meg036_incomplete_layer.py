"""A layer lacks what its sibling layers have.

## What it checks
Layers are compared with each other, whatever they are called, so that plain torch.distributed.checkpoint folders with the
names of Hugging Face, hybrid models and those without arguments are checked too. A layer that has only some of what at least
two siblings have is incomplete; several layers that lack the same are where three times as many have it. Where all other
layers agree, and there are at least three, or where the arguments tell which layers are alike, a whole component may be what
is missing; else it has to be torn. What MEG018 names is not said twice.

Where layers are named as Hugging Face models name them (`layers.0.self_attn.…`), one that has three of `q_proj`, `k_proj`,
`v_proj` and `o_proj`, or two of `gate_proj`, `up_proj` and `down_proj`, has the other too if any layer has it; no number below
the highest is missing; and beside the layers stand a token embedding and, where every layer begins with `input_layernorm`, a
final norm. How many layers there should be nothing in such a folder tells, so a loss of the last ones is not seen.

## Why it matters
torch.distributed.checkpoint stops at a key it asks for and does not find; with `allow_partial_load`, and in converters, it
goes on with what was allocated.

## How to fix
Save again with all ranks, or take an earlier iteration.

## When it can be wrong
An architecture may leave something out of one layer by design. A norm that only the first layer lacks (ModernBERT), layers
that share keys and values with earlier ones (Gemma 3n) or take keys for values (Gemma 4) are known, and so are adapters. A
job that saves only what it trains leaves the rest out. `--ignore MEG036` silences it.

## Seen in
verl-project/verl#2086, NVIDIA-NeMo/RL#2124 (keys lost in a conversion)
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.anatomy import Anatomy
from ckptcheck.checkpoint.layout import LAYER_NAMES, Stack
from ckptcheck.checkpoint.megatron.required import ADAPTER, expert_layers, is_plain, lacking
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.checkpoint.megatron.structure import LAYER
from ckptcheck.checkpoint.packing import fold
from ckptcheck.checkpoint.siblings import Names, incomplete
from ckptcheck.checkpoint.tensor import Tensor
from ckptcheck.phrase import count, few, ranges

COMPONENTS = (
    tuple(f"self_attn.{part}_proj.weight" for part in "qkvo"),
    tuple(f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
)
SHARED = re.compile(r"(^|\.)[kv]_(proj|norm)\.")
NORM = re.compile(r"(norm|(^|\.)ln_?\w*)\.weight$", re.IGNORECASE)
QUANTIZER = re.compile(r"quantizer|_amax|_extra_state")
HINT = "save again with all ranks, or take an earlier iteration"


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
    anatomy = Anatomy(None, layout, {name: Tensor(w.dtype, w.shape, (0, w.nbytes)) for name, w in outside.items()})
    stack = anatomy.stack
    if run.args or stack is None or anatomy.is_draft or not _is_named_as_hugging_face_does(stack):
        return
    if gap := set(range(max(stack.layers))) - stack.layers.keys():
        missing = (
            f"{count(len(gap), 'layer')} of {stack.prefix} {'is' if len(gap) == 1 else 'are'} missing ({ranges(gap)})"
        )
        yield Problem(missing, file=run.place, key=stack.name(min(gap)), hint=HINT)
    around = stack.prefix.rpartition(".")[0]
    beside = [name for name in outside if name.startswith(around)]
    numbered_ones = any("emb" in prefix for prefix in layout.stacks)  # one for each codebook (Musicgen)
    if anatomy.embedding is None and not numbered_ones:
        yield _lost(run, stack, f"{around}.embed_tokens.weight".lstrip("."), "token embedding")
    normed = around.rpartition(".")[2] in ("model", "language_model", "") and all(
        "input_layernorm.weight" in names for names in stack.layers.values()
    )
    if normed and not any(NORM.search(name) for name in beside):
        yield _lost(run, stack, f"{around}.norm.weight".lstrip("."), "final norm")


def _lost(run: Megatron, stack: Stack, name: str, what: str) -> Problem:
    return Problem(f"there is no {what} beside {stack.prefix}", file=run.place, key=name, hint=HINT)


def _is_named_as_hugging_face_does(stack: Stack) -> bool:
    """Whether layers have an attention and a block of weights under the names that most of transformers gives them."""
    names = {name.partition(".")[0] for found in stack.layers.values() for name in found}
    return stack.prefix.endswith("layers") and "self_attn" in names and len(stack.layers) > 1


def _layers(run: Megatron, stack: Stack) -> Iterator[Problem]:
    layers = {
        layer: fold(name for name in names if not QUANTIZER.search(name)) for layer, names in stack.layers.items()
    }
    own = LAYER.match(stack.name(min(layers), "x")) is not None
    kinds: dict[int, str] = {}
    if own and is_plain(run.args, run.structure.layers):
        routed = expert_layers(run.args, layers)
        kinds = {} if routed is None else {layer: "routed" if layer in routed else "dense" for layer in layers}
    alike = bool(kinds) or (len(layers) > 3 and len(set(layers.values())) == 2)
    said = lacking(run.args, run.structure) if own else {}
    found: dict[Names, dict[int, list[int]]] = {}
    for layer, (missing, having) in incomplete(layers, kinds, alike=alike).items():
        rest = missing - said.get(layer, set())
        if rest and not _by_design(stack, layers, layer, rest, run):
            found.setdefault(rest, {})[layer] = having
    for layer, names in layers.items():
        torn = frozenset(name for part in COMPONENTS for name in _torn(part, names, layers))
        if torn and not any(layer in where for where in found.values()):
            found.setdefault(torn, {})[layer] = [other for other, theirs in layers.items() if torn <= theirs]
    for missing, where in found.items():
        first = min(where)
        yield Problem(
            f"{stack.prefix}: {'layer' if len(where) == 1 else 'layers'} {ranges(where)} "
            f"{'lacks' if len(where) == 1 else 'lack'} {few(missing)}, which layers {ranges(where[first])} have",
            file=run.place,
            key=stack.name(first, min(missing)),
            hint=HINT,
        )


def _torn(part: tuple[str, ...], names: Names, layers: dict[int, Names]) -> list[str]:
    """Return what is left out of a component of which the layer has all but one, if another layer has that one."""
    lost = [name for name in part if name not in names]
    if len(lost) != 1:
        return []
    usual = [other for other, theirs in layers.items() if theirs.issuperset(part)]
    if SHARED.search(lost[0]) and len(usual) < len(layers) - 1:
        return []
    return lost if usual else []


def _by_design(stack: Stack, layers: dict[int, Names], layer: int, missing: Names, run: Megatron) -> bool:
    """A norm or scale that the first layer does without; keys and values that several layers share, or do without."""
    having = [other for other, names in layers.items() if missing <= names]
    if all(SHARED.search(name) for name in missing):
        return layer == max(layers) or len(having) < len(layers) - 1
    found = [run.weights.get(stack.name(having[0], name)) for name in missing] if having else []
    return layer == 0 and all(tensor is not None and len(tensor.shape) < 2 for tensor in found)
