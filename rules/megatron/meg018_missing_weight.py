"""A layer, an expert or a weight that the model needs is missing.

## What it checks
- **Layers**: the decoder has every layer from 0 to `num_layers` - 1 of the saved arguments; without arguments, no number below the
  highest is missing. The same holds for the layers of multi-token prediction (`mtp_num_layers`).
- **Experts**: every layer with experts has `num_experts` of them; without arguments, as many as the layer that has the most. Each
  has both of its matrices (`linear_fc1`, `linear_fc2`), and everything that most other experts of its layer have. Where the
  arguments describe a plain GPT, `num_experts` and `moe_layer_freq` also show a layer that lost all of them.
- **Ends**: the token embedding and the final norm exist, and so does the output layer (or a value head) if the arguments say that
  embeddings are not tied.
- **Parts of layers by the arguments**, where they describe a plain GPT: both norms, `linear_qkv` (with a bias under `add_qkv_bias`)
  and `linear_proj`, the norms of queries and keys under `qk_layernorm`, and `linear_fc1` and `linear_fc2`, or the router.
- **Parts of layers by their siblings**, in any model, also in plain torch.distributed.checkpoint folders with Hugging Face names: a
  layer has all tensors of at least two siblings; if several lack the same, three times as many have them. A whole component may
  be missing only if all other layers agree and there are at least three, or if the arguments say which layers are alike. Of
  `q_proj`, `k_proj`, `v_proj` and `o_proj`, or the three projections of the MLP, none is missing alone. Such a folder has a token
  embedding, no gap in its layers and, if every layer begins with `input_layernorm`, a final norm.

## Why it matters
- An uneven pipeline split drops layers while the model is built; the checkpoint is complete for that run alone. A job that saves
  the experts of some ranks does not notice. A critic may be saved without its head.
- Megatron stops at a key that it needs and does not find or, with a lenient `--dist-ckpt-strictness`, continues with uninitialized
  memory, as converters do. The router still selects missing experts.

## How to fix
Save again with all ranks, a pipeline split that holds all layers, and distinct expert numbers for every expert-parallel rank. For a
critic, include the head in `sharded_state_dict`. Or use an earlier iteration.

## When it can be wrong
- A model may be pruned on purpose and saved under its old arguments. A pipeline stage may be checked by itself. A custom provider
  may build other layers than the arguments say. A job that saves only the weights that it trains omits the rest.
- An architecture may omit something from one layer by design. Known cases are excluded: a norm that only the first layer lacks
  (ModernBERT), layers that share keys and values with earlier ones (Gemma 3n) or use keys as values (Gemma 4), and adapters.
- Without arguments the loss of the last layers is not found. `--ignore MEG018` silences it.

## Seen in
NVIDIA/Megatron-LM#1304 (30 layers, 28 built and saved), NVIDIA/Megatron-LM#1583; verl-project/verl#2086,
KempnerInstitute/KempnerForge#202, NVIDIA-NeMo/Megatron-Bridge#1716 (experts); hiyouga/LlamaFactory#4379 (a value model without its
head), NVIDIA-NeMo/RL#2124 (layers and keys lost in a conversion)
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.components import Components
from ckptcheck.checkpoint.layout import LAYER_NAMES, Stack
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.megatron.required_weights import (
    ADAPTER,
    FC1,
    FC2,
    expert_layers,
    is_plain,
    lacking,
    torn_experts,
)
from ckptcheck.checkpoint.megatron.structure import (
    EMBEDDING,
    FINAL_NORM,
    LAYER,
    OUTPUT,
    VALUE_HEADS,
    positive_argument,
)
from ckptcheck.checkpoint.packing import unquantized_names
from ckptcheck.checkpoint.siblings import Names, find_incomplete_layers
from ckptcheck.checkpoint.tensor import Tensor
from ckptcheck.linter.rule import SkipForDamage
from ckptcheck.text.formatting import count, format_layers, format_ranges, join_truncated

NESTED = "language_model."
NORMS = (FINAL_NORM, "decoder.final_norm.weight", "encoder.final_layernorm.weight", "encoder.final_norm.weight")
"""Names of the final norm: GPT's, that of Mamba and hybrids, and the encoder's, the name of the decoder in old checkpoints."""
COMPONENTS = (
    tuple(f"self_attn.{part}_proj.weight" for part in "qkvo"),
    tuple(f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
)
SHARED = re.compile(r"(^|\.)[kv]_(proj|norm)\.")
NORM = re.compile(r"(norm|(^|\.)ln_?\w*)\.weight$", re.IGNORECASE)
QUANTIZER = re.compile(r"quantizer|_amax|_extra_state")
HINT = (
    "if an earlier iteration has it, this save lost it: use that one, or save again with all ranks; if none has it, the job"
    " that saves leaves it out (a pipeline split, weights that it does not train, a head): mend that, then save again"
)
HINT_WITH_ARGUMENTS = f"{HINT}; if the saved arguments are not this model's, common.pt is of another save"
HINT_FOR_EXPERTS = (
    "if an earlier iteration has them, use that one; else save again with all expert-parallel ranks and a number of its own for"
    " each expert"
)


@rule("MEG018", "missing-weight", severity="error", on="megatron", when=lambda run: bool(run.weights))
def check(run: Megatron) -> Iterator[Problem]:
    if run.form == "legacy" and run.args and run.missing_ranks[1]:
        raise SkipForDamage("files of ranks are missing (MEG024)")
    is_adapted = any(ADAPTER.search(name) for name in run.weights)
    if run.structure.layers or _has_lost_all_layers(run):
        yield from _find_missing_layers(run)
    if run.structure.experts or (run.structure.layers and positive_argument(run.args, "num_experts") is not None):
        yield from _find_missing_experts(run)
    if run.structure.layers and run.args and not is_adapted:
        yield from _find_missing_weights(run)
    if not is_adapted:
        yield from _compare_siblings(run)


def _find_missing_layers(run: Megatron) -> Iterator[Problem]:
    for name, numbers, key in (
        ("layer", set(run.structure.layers), "num_layers"),
        ("layer of multi-token prediction", run.structure.mtp, "mtp_num_layers"),
    ):
        expected = positive_argument(run.args, key)
        missing = set(range(expected if expected is not None else max(numbers, default=-1) + 1)) - numbers
        if missing:
            argument = f": {key} is {expected}" if expected is not None else ""
            yield Problem(
                f"{count(len(missing), name)} of the model {'is' if len(missing) == 1 else 'are'} missing "
                f"({format_ranges(missing)}){argument}",
                file=run.finding_file,
                hint="use an earlier iteration that has them, or save again with a pipeline split that holds all layers"
                + (f"; if {key} is not this model's, common.pt is of another save" if expected is not None else ""),
            )


def _has_lost_all_layers(run: Megatron) -> bool:
    """Whether a GPT by its arguments has an embedding, and nothing that is numbered as a layer."""
    return EMBEDDING in run.weights and bool(run.args) and not any(".layers." in name for name in run.weights)


def _find_missing_experts(run: Megatron) -> Iterator[Problem]:
    most = 1 + max((expert for experts in run.structure.experts.values() for expert in experts), default=-1)
    expected = positive_argument(run.args, "num_experts") or most
    experts_by_layer = {layer: set[int]() for layer in _layers_without_experts(run)} | run.structure.experts
    lacking = [
        layer for layer, experts in experts_by_layer.items() if sum(expert < expected for expert in experts) < expected
    ]
    if lacking:
        layer = min(lacking)
        missing = set(range(expected)) - experts_by_layer[layer]
        more = (
            f", and {count(len(lacking) - 1, 'more layer lacks', 'more layers lack')} some" if len(lacking) > 1 else ""
        )
        yield Problem(
            f"layer {layer} lacks {count(len(missing), 'expert')} of {expected} ({format_ranges(missing)}){more}",
            file=run.finding_file,
            hint=HINT_FOR_EXPERTS,
            names=tuple(
                f"decoder.layers.{each}.mlp.experts.{expert}"
                for each in sorted(lacking)
                for expert in range(expected)
                if expert not in experts_by_layer[each]
            ),
        )
    incomplete = torn_experts(run.structure)
    if incomplete:
        layer, parts = min(incomplete.items())
        experts = set[int]().union(*parts.values())
        more = (
            f"; {count(len(incomplete) - 1, 'more layer has', 'more layers have')} the same gap"
            if len(incomplete) > 1
            else ""
        )
        yield Problem(
            f"{count(len(experts), 'expert')} of layer {layer} ({format_ranges(experts)}) "
            f"{'lacks' if len(experts) == 1 else 'lack'} {join_truncated(parts)}{more}",
            file=run.finding_file,
            hint=HINT_FOR_EXPERTS,
            names=tuple(
                f"decoder.layers.{each}.mlp.experts.{expert}.{part}"
                for each, lost in sorted(incomplete.items())
                for part, experts in sorted(lost.items())
                for expert in sorted(experts)
            ),
        )


def _layers_without_experts(run: Megatron) -> list[int]:
    """Return the layers that should have experts by the arguments, and have neither those nor a dense block."""
    layers = run.structure.layers
    if not is_plain(run.args, layers):
        return []
    return [
        layer
        for layer in sorted(expert_layers(run.args, layers) or ())
        if not layers[layer] & {*FC1, *FC2} and not any(name.startswith("mlp.experts.") for name in layers[layer])
    ]


def _find_missing_weights(run: Megatron) -> Iterator[Problem]:
    has_head = any(name.endswith(VALUE_HEADS) for name in run.weights)
    for names, needed in (
        ((EMBEDDING,), True),
        (NORMS, True),
        ((OUTPUT,), run.args.get("untie_embeddings_and_output_weights") is True and not has_head),
    ):
        if needed and not any(prefix + name in run.weights for name in names for prefix in ("", NESTED)):
            other = ", and there is no value head in its place" if OUTPUT in names else ""
            yield Problem(
                f"this weight is missing{other}", file=run.finding_file, key=names[0], hint=HINT_WITH_ARGUMENTS
            )
    layers_by_missing: dict[frozenset[str], list[int]] = {}
    for layer, lost in lacking(run.args, run.structure).items():
        layers_by_missing.setdefault(frozenset(lost), []).append(layer)
    for missing, layers in layers_by_missing.items():
        every = f"all {count(len(layers), 'layer')}" if len(layers) == len(run.structure.layers) else None
        which = every or format_layers(layers)
        yield Problem(
            f"{which} {'lacks' if len(layers) == 1 else 'lack'} {join_truncated(missing, 4)}",
            file=run.finding_file,
            key=f"decoder.layers.{min(layers)}.{min(missing)}",
            hint=HINT_WITH_ARGUMENTS,
            names=tuple(f"decoder.layers.{layer}.{name}" for layer in sorted(layers) for name in sorted(missing)),
        )


def _compare_siblings(run: Megatron) -> Iterator[Problem]:
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
