"""The base model lacks a layer or module that the adapter changes, or has it in another shape.

## What it checks
With the base model at hand (`--base FOLDER`, or a folder beside the adapter that adapter_config.json names):
- Each layer that the adapter changes exists, and has a module of that name.
- The pairs of experts fit: their number, and the ranks and shape of a parameter that holds all experts of a layer
  (`target_parameters`, laid out as PEFT does before 0.19 or since).
- Of a base model of text alone, the layers lie under the prefix of the adapter's modules. An end of it is enough, unless the
  adapter's `task_type` is CAUSAL_LM: PEFT 0.21 then leaves every matrix at its start, with a warning.
- lora_A and lora_B fit the shape of the base model's weight, and tensors that the adapter holds as a whole have its
  shape. Trained tokens have its width.

ckptcheck reads only headers of the base model. The rule does not compare the number of rows of a vocabulary, because jobs train
adapters on models with a resized vocabulary.

## Why it matters
PEFT refuses to load matrices of another shape, and ignores those of a module that it does not find, with a warning. vLLM and SGLang
refuse the request that names the adapter. The adapter was trained on another model, or another size of it.

## How to fix
Name the model that the adapter was trained on, in `base_model_name_or_path`.

## When it can be wrong
A quantized or fused weight has no shape to compare, so the rule only looks for its module. Of experts it checks their number and
the pairs of `target_parameters`. With `layer_replication` the rule is skipped. If several modules have the same place in a layer
(text and vision), one that fits is enough.

## Seen in
huggingface/autotrain-advanced#487 (an adapter of 18,944 numbers, loaded into a model of 14,336);
vllm-project/vllm#34186 (another prefix)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.adapter import (
    LORA,
    PREFIX,
    SAVED,
    VOCABULARY,
    LoraPair,
    index_by_tail,
    list_lora_pairs,
    lora_rank,
    tail_of,
)
from ckptcheck.checkpoint.base_model import open_base_model
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.compare.matching.merged_adapter import PARTS, find_expert_updates
from ckptcheck.text.formatting import count, format_shape, join_truncated

if TYPE_CHECKING:
    from ckptcheck.checkpoint.tensor import Tensor

LAYER = re.compile(r"\.(\d{1,9})\.")
EXPERT_NUMBER = re.compile(r"\.experts\.(\d{1,9})\.")
TOKENS = ".token_adapter.trainable_tokens_delta"
HINT = "name the base model that the adapter was trained on"


@rule(
    "ADP005",
    "foreign-base",
    severity="error",
    when=lambda ckpt: ckpt.is_adapter and bool(list_lora_pairs(ckpt.tensors)),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if ckpt.adapter is not None and ckpt.adapter.value.get("layer_replication"):
        raise Skip("with layer_replication the layers of the adapter are not those of the base model")
    base = open_base_model(ckpt)
    places = {_place(name.rpartition(".")[0]) for name in base.tensors}
    by_tail = index_by_tail(base.tensors)
    lacking: list[str] = []
    shapes: dict[tuple[tuple[int, ...], tuple[int, ...]], list[str]] = {}
    experts: dict[str, list[str]] = {}
    for pair in list_lora_pairs(ckpt.tensors):
        weights = _plain_weights(base, by_tail.get(tail_of(f"{pair.module}.weight"), []))
        expected = pair.base_shapes(ckpt.tensors)
        if ".experts" in pair.module:
            if reason := _judge_experts(ckpt, base, by_tail, pair):
                experts.setdefault(reason, []).append(pair.module)
            continue
        if _place(pair.module) not in places:
            if not _is_tied(base, pair.module, expected):
                lacking.append(pair.module)
        elif weights and not any(_fits(weight.shape, expected, is_embedding=pair.is_embedding) for weight in weights):
            shapes.setdefault((expected[0], weights[0].shape), []).append(pair.module)
    for name, tensor in ckpt.tensors.items():
        match = None if LORA.fullmatch(name) else SAVED.fullmatch(name)
        if match is None and TOKENS not in name:
            continue
        module, part = (match["module"], match["part"]) if match is not None else (name.partition(TOKENS)[0], "weight")
        tail = tail_of(f"{module.removeprefix(PREFIX).removesuffix('.base_layer')}.{part}")
        weights = _plain_weights(base, by_tail.get(tail, []))
        # the rows of a vocabulary may have been resized, and trained tokens are a part of them
        first = 1 if match is None or VOCABULARY.search(name) else 0
        if weights and not any(weight.shape[first:] == tensor.shape[first:] for weight in weights):
            shapes.setdefault((tensor.shape, weights[0].shape), []).append(name)
    resolved = base.config.resolved if base.config is not None else None
    if not lacking and resolved is not None and resolved.text is resolved.top:
        yield from _check_prefix(ckpt, base)
    if lacking:
        yield _problem(
            ckpt, f"the base model lacks {count(len(lacking), 'module')} that the adapter changes: {_list(lacking)}"
        )
    for reason, modules in experts.items():
        yield _problem(
            ckpt,
            f"{count(len(modules), 'pair', 'pairs')} of matrices for experts {'does' if len(modules) == 1 else 'do'} not fit "
            f"the base model: {reason}: {_list(modules)}",
        )
    for (own, theirs), modules in shapes.items():
        yield _problem(
            ckpt,
            f"{count(len(modules), 'module of the adapter fits', 'modules of the adapter fit')} a weight of shape "
            f"{format_shape(own)}, and the base model's is {format_shape(theirs)}: {_list(modules)}",
        )


def _check_prefix(ckpt: Checkpoint, base: Checkpoint) -> Iterator[Problem]:
    """Yield the prefix under which all modules lie, where those of a base model of text alone lie under another.

    PEFT and vLLM translate the names of vision-language models, whose classes moved their parts; none of a plain language model.
    """
    modules = [pair.module.removeprefix(PREFIX) for pair in list_lora_pairs(ckpt.tensors)]
    numbered = [found for module in modules if (found := LAYER.search(module))]
    stored = {name[: found.start()] for name in base.tensors if (found := LAYER.search(name))}
    own = {found.string[: found.start()] for found in numbered}
    if len(own) != 1 or len(numbered) < len(modules) or len(stored) != 1:
        return
    ours, theirs = own.pop(), stored.pop()
    # an adapter of the model without its head has shorter names, and PEFT then wraps that model; its task says which it wrapped
    has_head = ckpt.adapter is not None and ckpt.adapter.value.get("task_type") == "CAUSAL_LM"
    is_short = f".{theirs}".endswith(f".{ours}") and (ours == theirs or not has_head)
    if not f".{ours}".endswith(f".{theirs}") and not is_short:
        message = f"its modules are under {ours}, and the base model's under {theirs}: PEFT and vLLM answer like the base model"
        yield Problem(
            message,
            file=ckpt.tensor_to_file[next(iter(ckpt.tensors))],
            hint=f"rename {PREFIX}{ours}.… to {PREFIX}{theirs}.…",
        )


def _judge_experts(ckpt: Checkpoint, base: Checkpoint, by_tail: dict[str, list[str]], pair: LoraPair) -> str:
    """Return why a pair does not fit the experts of the base model; "" if it does, or if that is unknown."""
    module = pair.module
    while module.endswith(".base_layer"):
        module = module.removesuffix(".base_layer")
    start = f"{tail_of(f'{module}.weight').partition('.experts')[0]}.experts."
    numbers = {
        number
        for name, tensor in base.tensors.items()
        if tail_of(name).startswith(start)
        for number in _count_experts(tail_of(name), tensor)
    }
    if found := EXPERT_NUMBER.search(module):
        total = max(numbers, default=0)
        return f"it has {count(total, 'expert')} in that layer" if total and int(found[1]) >= total else ""
    listed = ckpt.adapter.value.get("target_parameters") if ckpt.adapter is not None else None
    parameters = [one for one in listed if isinstance(one, str)] if isinstance(listed, list) else []
    own = [one for one in parameters if f".{module}".endswith(f".{one.rpartition('.')[0]}")]
    lasts = [one.rpartition(".")[2] for one in own]
    stored = [f"{module}.{last}" for last in lasts]
    stored += [f"{module}.0.{name}.weight" for last in lasts for names in PARTS.get(last, ()) for name in names]
    weights = [weight for name in stored for weight in _plain_weights(base, by_tail.get(tail_of(name), []))]
    if not weights or ckpt.adapter is None or ckpt.adapter.value.get("rank_pattern"):
        return ""
    ranks, outputs, total = ckpt.tensors[pair.down].shape[0], ckpt.tensors[pair.up].shape[0], max(numbers, default=0)
    rank = lora_rank(ckpt.adapter, module)
    if not rank or ranks % rank:
        return ""  # ADP004
    if ranks != rank * total:
        return f"they are for {count(ranks // rank, 'expert')}, and it has {total:,}"
    if find_expert_updates(pair, ckpt, base.tensors, by_tail, own, 1.0):
        return ""
    theirs = join_truncated([format_shape(weight.shape) for weight in weights])
    return f"they make {outputs:,} × {ckpt.tensors[pair.down].shape[1]:,}, and its experts are {theirs}"


def _count_experts(tail: str, tensor: Tensor) -> Iterator[int]:
    """Yield the number of experts that a tensor of theirs shows."""
    if found := EXPERT_NUMBER.search(tail):
        yield int(found[1]) + 1
    elif len(tensor.shape) == 3:
        yield tensor.shape[0]


def _is_tied(base: Checkpoint, module: str, expected: tuple[tuple[int, int], ...]) -> bool:
    """Whether a module is the head of a base model that ties it to its embedding, and so does not store it."""
    embedding = base.components.embedding
    if LAYER.search(module) or embedding is None or base.components.is_tied is not True:
        return False
    return _fits(base.tensors[embedding].shape, expected, is_embedding=False)


def _place(module: str) -> str:
    """Return layer and last name of a module: what lies between differs between releases of a class."""
    parts = tail_of(f"{module}.weight").split(".")
    return ".".join((*parts[:2], parts[-2])) if parts[1].isdigit() else parts[0]


def _plain_weights(base: Checkpoint, names: list[str]) -> list[Tensor]:
    return [base.tensors[name] for name in names if base.tensors[name].is_plain]


def _fits(shape: tuple[int, ...], expected: tuple[tuple[int, int], ...], *, is_embedding: bool) -> bool:
    # The rows of a vocabulary may have been resized for the adapter.
    return shape[1:] == expected[0][1:] if is_embedding else shape in expected


def _list(modules: list[str]) -> str:
    return join_truncated([module.removeprefix(PREFIX) for module in modules])


def _problem(ckpt: Checkpoint, message: str) -> Problem:
    return Problem(message, file="adapter_config.json", key="base_model_name_or_path", hint=HINT)
