"""Finds the parts of blocks, or whole blocks, that a layer lacks although transformers builds them in every such layer.

Siblings show only what the other layers have (`checkpoint.siblings`). If a model has two layers, or if an exporter dropped one
name from all layers, only the class of the model shows what a layer needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ckptcheck.checkpoint.components import EMBEDDING, HEAD
from ckptcheck.checkpoint.config import Config
from ckptcheck.checkpoint.decoder_families import QKVO, family_of
from ckptcheck.checkpoint.parameters_table import ParametersTable
from ckptcheck.checkpoint.siblings import OPTIONAL, SHARED
from ckptcheck.checkpoint.weights_table import WeightsTable

_EXPERTS = re.compile(r"(^|\.)(experts\.|gate\.|router\.)")
_SHARED = re.compile(r"(^|\.)shared_expert")
_MATRIX = re.compile(r"\.weight$|(^|\.)experts\.")
"""Names that may replace other names of the architecture: a fused matrix, experts in one tensor, a renamed norm."""


def block_of(name: str) -> str:
    """Return the block of a tensor, given by its name within a layer; "" for a norm of the layer itself.

    A feed-forward block is dense, or has experts with their router, or shared experts; each is a block of its own.

    >>> block_of("self_attn.q_norm.weight"), block_of("mlp.up_proj.weight"), block_of("input_layernorm.weight")
    ('self_attn', 'mlp', '')
    >>> block_of("mlp.gate.weight"), block_of("mlp.experts.{}.up_proj.weight"), block_of("mlp.shared_expert.up_proj.weight")
    ('mlp experts', 'mlp experts', 'mlp shared experts')
    """
    component, _, rest = name.partition(".")
    if rest.count(".") > 1 and not _EXPERTS.search(rest) and not _SHARED.search(rest):
        # a module within the block, which some layers may have: an indexer, a compressor
        return name.rsplit(".", 2)[0]
    if "." not in rest and "experts" not in rest:
        # a norm, or a matrix of the layer itself; `self_attn.sinks` belongs to its block
        return component if rest not in ("weight", "bias", "") else ""
    if _SHARED.search(rest):
        return f"{component} shared experts"
    return f"{component} experts" if _EXPERTS.search(rest) else component


def list_layer_tensors(config: Config | None, prefix: str) -> frozenset[str]:
    """Return the tensors that transformers builds in the layers of an architecture, whatever the config's switches are.

    prefix: the name in front of the layers' numbers (``model.layers``). The result has names within a layer, with {} for further
    numbers; not every layer has all of them. Empty if neither architecture nor family is known.
    """
    found: set[str] = set()
    if (table := WeightsTable.of(config)) is not None:
        switched = {pattern for switch in table.switches for pattern in (*switch.on, *switch.off)}
        for pattern in _list_required(config, table):
            head, inside, rest = pattern.partition(".{}.")
            is_switched_bias = pattern.endswith(".bias") and pattern in switched
            if inside and (head == prefix or head.endswith(f".{prefix}")) and not is_switched_bias:
                found.add(rest)
    family = family_of(config)
    if family is None:
        return frozenset(found)
    if not found:
        found.update(f"self_attn.{part}.weight" for part in QKVO)
    if not any(block_of(name) == "mlp" for name in found):
        # the tiny model that the table was learned from has experts in every layer
        found.update(
            f"mlp.{part}_proj.weight" for part in (("gate", "up", "down") if family == "gated" else ("up", "down"))
        )
    return frozenset(found)


def list_outer_tensors(config: Config | None, prefix: str) -> frozenset[str]:
    """Return the tensors that transformers builds outside the layers: the last norm, a table of positions.

    prefix: the name in front of the layers' numbers (``model.layers``); the tensors lie directly in a module of its parent. It
    leaves out the token embedding, the head, and every tensor but a `weight`. Empty if the architecture is unknown.
    """
    if (table := WeightsTable.of(config)) is None:
        return frozenset()
    stacks = {pattern.partition(".{}.")[0] for pattern in table.required if ".{}." in pattern}
    own = next((stack for stack in stacks if stack == prefix or stack.endswith(f".{prefix}")), None)
    if own is None:
        return frozenset()
    beside, parent = own.removesuffix(own.rpartition(".")[2]), prefix.removesuffix(prefix.rpartition(".")[2])
    return frozenset(
        parent + rest
        for pattern in _list_required(config, table)
        if pattern.startswith(beside) and (rest := pattern.removeprefix(beside)).count(".") == 1
        if rest.endswith(".weight") and not EMBEDDING.search(rest) and not HEAD.search(rest)
    )


def _list_required(config: Config | None, table: WeightsTable) -> frozenset[str]:
    """Return the patterns of tensors that the model of a config has.

    A size of 0 removes parts (Gemma 4's large models have a `hidden_size_per_layer_input` of 0), and the tables do not tell which
    ones: then only the tensors that every config gives a model count.
    """
    if config is None or config.resolved is None:
        return table.required
    sizes = [config.resolved.at(field) for field in table.sizes]
    if not any(size is not None and type(size.value) is int and size.value == 0 for size in sizes):
        return table.required
    known = ParametersTable.of(config)
    return table.required & known.needs if known is not None else frozenset()


def find_lacking_layers(
    layers: Mapping[int, Iterable[str]], built: frozenset[str], *, alike: bool
) -> dict[str, list[int]]:
    """Map each tensor that transformers builds to the layers that lack it although they have its block, or need it.

    It leaves out a block with a matrix of another name, which may replace several.

    Args:
        layers: layer → names of its tensors within it, as an unquantized model has them.
        built: what `list_layer_tensors` returns.
        alike: the blocks of the architecture are the same in every layer. Then every layer needs its norms, attention if the
            architecture has one kind of it, and a dense feed-forward block if it has no other. Else layers may be of unknown
            kinds, and a tensor counts only if its block is whole without it, and if no layer, or one of two, has it.
    """
    blocks: dict[str, set[str]] = {}
    for name in built:
        blocks.setdefault(block_of(name), set()).add(name)
    # a layer may be of either kind where there are two
    mixers = [block for block in blocks if re.search("attn|mixer|conv|mamba", block)]
    feeds = [block for block in blocks if block and block not in mixers and "shared" not in block]
    needed = {"", *(mixers if len(mixers) == 1 else ()), *(feeds if len(feeds) == 1 else ())}
    is_needed = alike and "" in blocks
    lacking: dict[str, list[int]] = {}
    for layer, stored in sorted(layers.items()):
        names = frozenset(stored)
        foreign = {block_of(name) for name in names - built if _MATRIX.search(name)}
        for block, wanted in blocks.items():
            missing = wanted - names
            is_there = len(missing) < len(wanted) or (is_needed and block in needed and not foreign)
            if is_there and block not in foreign and (alike or (len(missing) == 1 and _is_common(*missing))):
                for name in sorted(missing):
                    lacking.setdefault(name, []).append(layer)
    if alike:
        return lacking
    having = {name for names in layers.values() for name in names}
    return {
        name: where
        for name, where in lacking.items()
        if name not in having or (len(layers) == 2 and not OPTIONAL.search(name) and not SHARED.search(name))
    }


def _is_common(name: str) -> bool:
    """Whether all layers have a tensor if one has it: a weight of a block, or a norm of the layer."""
    return name.endswith(".weight") and (block_of(name) != "" or re.search(r"norm|ln", name) is not None)
