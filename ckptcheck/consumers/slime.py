"""Decides which parameters slime and miles pack before they push them into the engine.

Source: slime/backends/megatron_utils/megatron_to_hf/processors/quantizer_compressed_tensors.py (THUDM/slime a86b0b1). slime
matches entries with the names of *parameters*, so ``re:.*mlp.gate$`` matches the router's module in the engine, but not the
router's ``mlp.gate.weight`` here. It matches a plain entry as a prefix, so ``model.layers.1`` is also layers 10 to 19. It packs
every matrix that no entry matches, embeddings, head and routers too.
"""

from __future__ import annotations

from ckptcheck.consumers.base import ConsumerError, ConsumerInput, Decision, Module, UnknownBehavior
from ckptcheck.consumers.config_lists import read_ignore_list
from ckptcheck.consumers.consumer import Consumer, QuantizationPolicy
from ckptcheck.consumers.entries import EntryList, make_prefix_keys, parse_regex_or_prefix
from ckptcheck.consumers.structures import ParameterStructures

VERSION = "2026-08"


def read_config(request: ConsumerInput) -> QuantizationPolicy:
    """Read a config. Raises ConsumerError if slime raises on it, UnknownBehavior for a method that ckptcheck does not model."""
    if request.method != "compressed-tensors":
        raise UnknownBehavior(f"what slime makes of {request.method} is not known to ckptcheck")
    groups = request.config.get("config_groups")
    group = groups.get("group_0") if isinstance(groups, dict) else None
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict) or not {"group_size", "symmetric"} <= weights.keys():
        raise ConsumerError("config_groups.group_0.weights names no group_size or symmetric")
    rules = read_ignore_list(request.config)
    entries = EntryList(rules, parse_regex_or_prefix, keys=make_prefix_keys(rules))

    def decide(module: Module) -> Decision:
        hit = entries.first_match(module.name)
        return Decision(quantized=hit is None, entry=entries.original(hit))

    return QuantizationPolicy(decide, {"ignore": entries})


SLIME = Consumer(
    name="slime",
    title="slime",
    version=VERSION,
    read_config=read_config,
    structures=ParameterStructures(),
    missing_parameter_effect="sends no {tensor}",
    sends_weights=True,
    matches_parameters=True,
)
