"""Finds layers that lack experts, have more than the config declares, or whose routers lack their bias."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from itertools import islice

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.expected.fault import Explained, Fault
from ckptcheck.checkpoint.experts import fused_experts, iter_numbered_experts
from ckptcheck.checkpoint.layout import INDEX, Stack
from ckptcheck.checkpoint.packing import unquantized_name
from ckptcheck.checkpoint.weights_table import WeightsTable
from ckptcheck.linter.rule import Problem
from ckptcheck.text.formatting import format_layers, format_ranges, join_truncated

MAX_LISTED = 1000
"""Most missing experts in a message: a hostile count in a config must not become a set of that size."""
GROUPED = re.compile(r"(^|\.)experts\.(\w{1,40})\.weight(\d{1,6})$")
"""An expert as TEGroupedLinear of Megatron-LM names it: the number behind `weight`."""
ROUTER_BIAS = "e_score_correction_bias"
TRAINED_BUFFERS = (ROUTER_BIAS, "expert_bias", "balancing_biases", "layer_scalar")
"""Ends of the names of buffers with trained numbers, in the classes of transformers 5.24 that save them."""


def find_expert_faults(ckpt: Checkpoint, explained: Explained) -> Iterator[Fault]:
    """Yield the layers with too few or too many experts, then the routers without their bias."""
    anatomy = ckpt.components
    stack, declared = anatomy.stack, anatomy.num_experts
    if stack is None:
        return
    groups = list(iter_numbered_experts(anatomy))
    most = max((max(members) + 1 for *_, members, _ in groups), default=0)
    absent: dict[tuple[int, int, tuple[int, ...]], list[tuple[int, str]]] = {}
    for layer, group, members, parts in groups:
        expected = declared if isinstance(declared, int) else most if declared is None else max(members) + 1
        key = stack.full_name(layer, group)
        if len(members) < expected:
            lost = islice((expert for expert in range(expected) if expert not in members), MAX_LISTED)
            absent.setdefault((expected, len(members), tuple(lost)), []).append((layer, key))
        yield from _find_torn_experts(ckpt, stack, layer, group, members, parts)
        most_real = _count_real(ckpt)
        if most_real is not None and (surplus := {expert for expert in members if expert >= most_real}):
            message = f"layer {layer} has experts beyond the {most_real} that {anatomy.experts_source}: {format_ranges(surplus)}"
            yield Fault("surplus", Problem(message, ckpt.file_of(key), key, "correct the count, or export again"))
    for (total, number, missing), places in absent.items():
        source = anatomy.experts_source if isinstance(declared, int) else "other layers have"
        layers, key = [layer for layer, _ in places], places[0][1]
        is_first = missing[0] == number and total % number == 0 and len(groups) == len(places) > 1
        share = f": those of one of {total // number} expert-parallel ranks" if is_first else ""
        message = (
            f"{format_layers(layers)} {'has' if len(layers) == 1 else 'have'} {number} of the {total} experts that {source}; "
            f"missing: {format_ranges(missing)}{share}"
        )
        yield Fault("missing", Problem(message, ckpt.file_of(key), key, "save again from all expert-parallel ranks"))
    yield from _find_grouped(ckpt, stack, explained)
    yield from _find_in_fused(ckpt)
    yield from _find_lost_router_biases(ckpt, stack, explained)


def _count_real(ckpt: Checkpoint) -> int | None:
    """Return how many experts a layer may have; None if the config gives a list, or no number."""
    declared = ckpt.components.num_experts
    if not isinstance(declared, int):
        return None
    # ERNIE 4.5 VL has as many again for images, numbered after those for text.
    is_doubled = ckpt.config is not None and str(ckpt.config.get("model_type")).startswith("ernie4_5_vl_moe")
    return 2 * declared if is_doubled else declared


def _find_torn_experts(
    ckpt: Checkpoint, stack: Stack, layer: int, group: str, members: set[int], parts: Mapping[str, Set[int]]
) -> Iterator[Fault]:
    """Yield which experts of a layer lack weights that the others have."""
    whole: dict[str, set[int]] = {}
    for part, experts_with in parts.items():
        if (core := unquantized_name(part)) is not None:
            whole.setdefault(core, set()).update(experts_with)
    lacking: dict[frozenset[int], list[str]] = {}
    for part, experts_with in whole.items():
        if part.endswith("weight") and experts_with != members:
            lacking.setdefault(frozenset(members - experts_with), []).append(part)
    for experts, names in lacking.items():
        if frozenset(members - experts) in lacking and 2 * len(experts) > len(members):
            continue  # the other experts have these weights too, under another name than the usual one
        one = len(experts) == 1
        problem = Problem(
            f"in layer {layer} {'expert' if one else 'experts'} {format_ranges(experts)} {'lacks' if one else 'lack'} "
            f"{join_truncated(names)}, which the others have",
            file=ckpt.file_of(stack.full_name(layer, group)),
            key=stack.full_name(layer, f"{group}.{min(experts)}.{min(names)}"),
            hint="copy them from the checkpoint that this one was made of, or export again",
        )
        yield Fault("missing", problem, frozenset(f"{stack.prefix}.{{}}.{group}.{{}}.{name}" for name in names))


def _find_grouped(ckpt: Checkpoint, stack: Stack, explained: Explained) -> Iterator[Fault]:
    """Yield experts under the names of Megatron's grouped ones, which a merge did not translate (verl-project/verl#2024)."""
    layers = {layer: [name for name in names if GROUPED.search(name)] for layer, names in stack.layers.items()}
    layers = {layer: names for layer, names in layers.items() if names}
    if not layers:
        return
    first = min(layers)
    name = min(layers[first])
    explained.moved |= {stack.full_name(layer, each) for layer, names in layers.items() for each in names}
    usual = GROUPED.sub(r"\1experts.\3.\2.weight", name)
    problem = Problem(
        f"the experts of {format_layers(sorted(layers))} are named as Megatron groups them ({name}): loaders look for {usual}, "
        "and start the experts from random numbers",
        file=ckpt.file_of(stack.full_name(first, name)),
        key=stack.full_name(first, name),
        hint="rename experts.NAME.weightN to experts.N.NAME.weight",
    )
    yield Fault("missing", problem)


def _find_in_fused(ckpt: Checkpoint) -> Iterator[Fault]:
    """Yield fused expert tensors that hold fewer or more experts than the config declares."""
    declared, most, source = ckpt.components.num_experts, _count_real(ckpt), ckpt.components.experts_source
    if not isinstance(declared, int) or most is None:
        return
    for name, stored in fused_experts(ckpt.components):
        file = ckpt.tensor_to_file[name]
        if stored < declared:
            message = f"it holds {stored} of the {declared} experts that {source}"
            yield Fault("missing", Problem(message, file, name, "save again from all expert-parallel ranks"))
        elif stored > most:
            message = f"it holds {stored} experts, more than the {most} that {source}"
            yield Fault("surplus", Problem(message, file, name, "correct the count, or export again"))


def _find_lost_router_biases(ckpt: Checkpoint, stack: Stack, explained: Explained) -> Iterator[Fault]:
    """Yield the layers whose router lacks the bias that ``topk_method`` of noaux_tc needs, else trained buffers that none has."""
    if ckpt.config is None or ckpt.config.get("topk_method") != "noaux_tc":
        yield from _find_lost_buffers(ckpt, explained)
        return
    layers = [
        layer
        for layer, names in stack.layers.items()
        if "mlp.gate.weight" in names and not any(name.endswith(ROUTER_BIAS) for name in names)
    ]
    if layers:
        explained.names.add(f"mlp.gate.{ROUTER_BIAS}")
        problem = Problem(
            f"topk_method is noaux_tc, but the routers of {format_layers(layers)} have no {ROUTER_BIAS}; "
            "engines choose experts without it",
            file=ckpt.file_of(stack.full_name(layers[0])),
            key=stack.full_name(layers[0], f"mlp.gate.{ROUTER_BIAS}"),
            hint="export again with a bridge that maps the router's expert_bias",
        )
        yield Fault("missing", problem)


def _find_lost_buffers(ckpt: Checkpoint, explained: Explained) -> Iterator[Fault]:
    """Yield buffers that training changes and that are stored in no layer, though the modules around them are."""
    table, config = WeightsTable.of(ckpt.config), ckpt.config
    kinds = {INDEX.sub("{}", names[0]) for names in ckpt.layout.names_by_template.values()}
    lost = [
        kind
        for kind in (sorted(table.required) if table is not None else ())
        if kind.endswith(TRAINED_BUFFERS)
        and kind not in kinds
        and any(other.startswith(f"{kind.rpartition('.')[0]}.") for other in kinds)
    ]
    if config is not None and lost:
        explained.names.update(lost)
        problem = Problem(
            f"nothing is stored for {join_truncated(lost)}, which training changes in every {config.architecture}: transformers "
            "fills it with zeros or ones",
            file=config.file,
            key=lost[0],
            hint="export again with a converter that takes buffers along (state_dict, not parameters)",
            names=tuple(lost),
        )
        yield Fault("missing", problem)
