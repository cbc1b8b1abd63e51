"""slime and miles: which parameters they pack before they push them into the engine.

Source: slime/backends/megatron_utils/megatron_to_hf/processors/quantizer_compressed_tensors.py (THUDM/slime a86b0b1). The
names are those of *parameters*, so ``re:.*mlp.gate$`` matches the router's module in the engine and not the router's
``mlp.gate.weight`` here; a plain entry is a beginning, so ``model.layers.1`` is also layers 10 to 19. Everything with
two dimensions is packed that no entry matches, embeddings, head and routers too.
"""

from __future__ import annotations

from ckptcheck.dialects.base import Module, Question, Refused, Unknown, Verdict
from ckptcheck.dialects.entries import Entries, beginnings, regex_or_beginning
from ckptcheck.dialects.groups import ignored
from ckptcheck.dialects.reading import Reader

NAME, VERSION = "slime", "2026-08"


def read(question: Question) -> Reader:
    """Read a config. Raises Refused where slime raises on it, Unknown for a method that is not modelled."""
    if question.method != "compressed-tensors":
        raise Unknown(f"what slime makes of {question.method} is not known to ckptcheck")
    groups = question.config.get("config_groups")
    group = groups.get("group_0") if isinstance(groups, dict) else None
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict) or not {"group_size", "symmetric"} <= weights.keys():
        raise Refused("config_groups.group_0.weights names no group_size or symmetric")
    rules = ignored(question.config)
    entries = Entries(rules, regex_or_beginning, keys=beginnings(rules))

    def judge(module: Module) -> Verdict:
        hit = entries.first(module.name)
        return Verdict(quantized=hit is None, entry=None if hit is None else entries.written[hit])

    return Reader(judge, {"ignore": entries})
