"""The layout of a server: how it spreads a model over its ranks. It decides which checksums can be equal."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

import msgspec

from ckptcheck.text.formatting import join_truncated

Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 16)]
"""A number of ranks that a server reports. The reference server starts with as many."""
Word = Annotated[str, msgspec.Meta(pattern=r"\A([A-Za-z0-9_][\w.-]*)?\Z", max_length=64)]
"""A name that a server reports and that goes on to a command line; it cannot be mistaken for an option."""
NO_WEIGHTS = ("", "none", "ngram", "suffix")
"""Methods of speculative decoding without weights of their own, in SGLang and vLLM."""
_COPY = re.compile(r"\.dp\d+")
_RANK = re.compile(r"(?:tp|pp|pcp|dp)\d+")


@dataclass(frozen=True)
class ServerLayout:
    """How a server spreads a model, and its storage form; 0 and "" for missing facts."""

    tp: int = 0
    pp: int = 1
    ep: int = 1
    attention_groups: int = 1
    """Groups of tensor-parallel ranks with requests of their own (SGLang's attn_dp_size)."""
    copies: int = 1
    """Copies of the whole model, each on its own ranks."""
    quantization: str = ""
    """The method that it loads with."""
    other_settings: tuple[str, ...] = ()
    """Other settings that move or rename weights, as the server reports them."""
    draft: str = ""
    """The method of speculative decoding."""

    @property
    def ranks(self) -> int:
        """Ranks of one copy of the model; 0 if the server does not say."""
        return self.tp * self.pp

    @property
    def has_draft(self) -> bool:
        """Whether it also has the weights of a draft model."""
        return self.draft.lower() not in NO_WEIGHTS

    def difference(self, other: ServerLayout) -> str:
        """Describe the first difference that gives equal weights other checksums, as ``setting: this, not that``; ""
        without one.

        The number of copies and a draft model do not change the weights of a copy.

        >>> ServerLayout(tp=2).difference(ServerLayout(tp=1, pp=2))
        'tensor parallelism: 2, not 1'
        >>> ServerLayout(tp=2, copies=4, draft="EAGLE").difference(ServerLayout(tp=2))
        ''
        """
        if not self.tp or not other.tp:
            return ""
        pairs = {
            "tensor parallelism": (self.tp, other.tp),
            "pipeline parallelism": (self.pp, other.pp),
            "expert parallelism": (self.ep, other.ep),
            "data parallelism of attention": (self.attention_groups, other.attention_groups),
            "quantization": (self.quantization or "none", other.quantization or "none"),
            "settings": (
                join_truncated(self.other_settings) or "the usual",
                join_truncated(other.other_settings) or "the usual",
            ),
        }
        return next(
            (f"{setting}: {ours}, not {theirs}" for setting, (ours, theirs) in pairs.items() if ours != theirs), ""
        )


def format_rank(tp: int, pp: int, dp: int = 0, role: str = "target", pcp: int = 0) -> str:
    """Return the name of a rank, which is the same for every engine.

    >>> format_rank(1, 0), format_rank(0, 2, 1, "draft")
    ('tp1', 'tp0.pp2.dp1.draft')
    """
    ranks = [f"pp{pp}" if pp else "", f"pcp{pcp}" if pcp else "", f"dp{dp}" if dp else ""]
    return ".".join(filter(None, [f"tp{tp}", *ranks, role if role != "target" else ""]))


def place_in_copy(place: str) -> str:
    """Return the place within one copy of the model.

    >>> place_in_copy("tp1.dp3/norm.weight"), place_in_copy("tp0.pp1/norm.weight")
    ('tp1/norm.weight', 'tp0.pp1/norm.weight')
    """
    rank, slash, name = place.partition("/")
    return _COPY.sub("", rank) + slash + name


def is_draft(place: str) -> bool:
    """Whether a place belongs to a draft model.

    >>> is_draft("tp0.draft/norm.weight"), is_draft("tp0.dp1/draft.weight")
    (True, False)
    """
    return any(_RANK.fullmatch(part) is None for part in place.partition("/")[0].split("."))
