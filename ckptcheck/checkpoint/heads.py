"""Reward, value and classification heads: which architectures have one, and how many labels it has."""

from __future__ import annotations

import re
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

import msgspec

from ckptcheck.checkpoint.config import HIDDEN, Config
from ckptcheck.checkpoint.learned_table import whole_table
from ckptcheck.text.formatting import format_shape

if TYPE_CHECKING:
    from ckptcheck.checkpoint.components import Components

SCORERS = ("ForSequenceClassification", "ForTokenClassification", "RewardModel", "ForRewardModel", "ForScore")
VALUE_HEADS = ("value_head.weight", "v_head.weight", "v_head.summary.weight", "critic_head.weight")
OTHER_PARTS = re.compile(
    r"embed|(^|[._])(wte|wpe|shared|rotary\w{0,64}|position\w{0,64}|norm\w{0,64}|\w{0,64}norm|ln\w{0,64}|pooler"
    r"|predictions\w{0,64}|lm_head|vocab_\w{1,64})(\.|$)"
)
"""Names of tensors outside the layers that are no score head: embeddings, norms, the pooler and the head of the language model."""
LM_HEADS = ("embed_out.weight", "lm_head.weight")
"""Names of language-modelling heads that some reward models use for their score head, with a row for each label."""
DEFAULT_LABELS = 2
"""Labels that transformers assumes if the config declares none (`PreTrainedConfig.num_labels`)."""


class HeadLayout(msgspec.Struct, frozen=True):
    """The origin of a head's unexpected shape."""

    text: str
    """What the head is, as a part of a message."""
    hint: str
    """What to do about it."""


def explain_head_shape(found: tuple[int, ...], expected: tuple[int, int]) -> HeadLayout | None:
    """Explain how a head's shape arises from the expected one; None if nothing explains it.

    Args:
        found: the shape as stored.
        expected: [outputs, hidden size], as torch.nn.Linear stores a weight.

    """
    outputs, hidden = expected
    if found == (hidden, outputs):
        return HeadLayout(
            "it is transposed: a Linear stores [outputs, inputs]", f"store its transpose, {format_shape(expected)}"
        )
    if prod(found) == outputs * hidden:
        if len(found) == 2:
            return HeadLayout("it was saved in a tensor-parallel layout", "gather or reshape the head")
        return HeadLayout(
            "it has the right numbers in other dimensions", f"reshape the head to {format_shape(expected)}"
        )
    if len(found) == 2 and found[0] == outputs and 0 < found[1] < hidden and hidden % found[1] == 0:
        return HeadLayout(
            f"it has the columns of one rank of {hidden // found[1]}", "gather the head from all tensor-parallel ranks"
        )
    return None


def is_scorer(config: Config | None) -> bool:
    """Whether the architecture has a head that scores sequences or tokens."""
    return config is not None and (config.architecture or "").endswith(SCORERS)


def is_language_model(config: Config | None) -> bool:
    """Whether the architecture has a language-modelling head."""
    return config is not None and (config.architecture or "").endswith(("ForCausalLM", "LMHeadModel"))


def count_labels(config: Config) -> int:
    """Count the labels that the config declares, as transformers does."""
    named = config.value.get("id2label")
    if isinstance(named, dict) and named:
        return len(named)
    number = config.value.get("num_labels")
    return number if type(number) is int else DEFAULT_LABELS


@cache
def _facts() -> dict[str, Any]:
    """Return what fixtures/learn_heads.py learned from transformers."""
    facts: dict[str, Any] = msgspec.json.decode(whole_table("heads"))
    return facts


def always_ties(architecture: str | None) -> bool:
    """Whether transformers 5 ties the head of an architecture to its embedding whatever the config says (T5 and its kin)."""
    return architecture in _facts()["always_tied"]


def never_ties(architecture: str | None) -> bool:
    """Whether transformers 5 gives an architecture a head of its own whatever the config says (Pop2Piano)."""
    return architecture in _facts()["never_tied"]


def score_head_modules(architecture: str | None) -> tuple[str, ...]:
    """Return the modules with a row for each label in transformers' class of this name; () for a class outside transformers."""
    return tuple(head for head, names in _facts()["score_heads"].items() if architecture in names)


def find_likely_heads(components: Components) -> list[str]:
    """Return the tensors that may be a score head under an unknown name.

    In a class outside transformers: any tensor outside the layers whose name marks it as nothing else. In transformers'
    classes: a matrix from the hidden state to fewer than 1,000 numbers that are not the vocabulary.
    """
    config, tensors = components.config, components.tensors
    if config is None:
        return []
    outside = components.layout.outside
    if not score_head_modules(config.architecture):
        return [name for name in outside if not OTHER_PARTS.search(name)]
    hidden, vocabulary = config.integer(*HIDDEN), config.integer("vocab_size")
    narrow = [
        name
        for name in outside
        if len(tensors[name].shape) == 2
        and tensors[name].shape[1] == hidden
        and tensors[name].shape[0] < min(1000, hidden)
        and tensors[name].shape[0] != vocabulary
    ]
    return [name for name in narrow if name.endswith(LM_HEADS) or not OTHER_PARTS.search(name)]
