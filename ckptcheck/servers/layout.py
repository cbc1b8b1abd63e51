"""How a server spreads a model over its ranks, and where a checksum is from: decides which checksums can be equal."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

import msgspec

from ckptcheck.phrase import few

Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 16)]
"""How many ranks a server says it has: what is started here is started with as many."""
Word = Annotated[str, msgspec.Meta(pattern=r"\A([A-Za-z0-9_][\w.-]*)?\Z", max_length=64)]
"""A name that a server says and that is handed on to a command line: it cannot be taken for an option."""
NO_WEIGHTS = ("", "none", "ngram", "suffix")
"""Ways of speculative decoding that have no weights of their own, in SGLang and vLLM."""
_COPY = re.compile(r"\.dp\d+")
_RANK = re.compile(r"(?:tp|pp|pcp|dp)\d+")


@dataclass(frozen=True)
class Layout:
    """How a server spreads a model, and in which form it holds it; 0 and "" where it does not say.

    tp, pp, ep: ranks of tensor, pipeline and expert parallelism. attention: groups of the tensor-parallel ranks that attend to
    requests of their own (SGLang's attn_dp_size). copies: of the whole model, each on ranks of its own. quantization: the method
    that it loads with. further: what else moves or renames weights, as it was set. draft: how it speculates.
    """

    tp: int = 0
    pp: int = 1
    ep: int = 1
    attention: int = 1
    copies: int = 1
    quantization: str = ""
    further: tuple[str, ...] = ()
    draft: str = ""

    @property
    def ranks(self) -> int:
        """Ranks of one copy of the model; 0 where it does not say."""
        return self.tp * self.pp

    @property
    def drafts(self) -> bool:
        """Whether it has the weights of a draft model beside."""
        return self.draft.lower() not in NO_WEIGHTS

    def unlike(self, other: Layout) -> str:
        """Say in what two differ, as ``what: this, not that``, where equal weights then have other checksums; "" where they do not.

        How many copies there are, and a draft model beside, change nothing in the weights of a copy.

        >>> Layout(tp=2).unlike(Layout(tp=1, pp=2))
        'tensor parallelism: 2, not 1'
        >>> Layout(tp=2, copies=4, draft="EAGLE").unlike(Layout(tp=2))
        ''
        """
        if not self.tp or not other.tp:
            return ""
        pairs = {
            "tensor parallelism": (self.tp, other.tp),
            "pipeline parallelism": (self.pp, other.pp),
            "expert parallelism": (self.ep, other.ep),
            "data parallelism of attention": (self.attention, other.attention),
            "quantization": (self.quantization or "none", other.quantization or "none"),
            "settings": (few(self.further) or "the usual", few(other.further) or "the usual"),
        }
        return next((f"{what}: {ours}, not {theirs}" for what, (ours, theirs) in pairs.items() if ours != theirs), "")


def rank_of(tp: int, pp: int, dp: int = 0, role: str = "target", pcp: int = 0) -> str:
    """Spell the place of a rank, the same for every engine.

    >>> rank_of(1, 0), rank_of(0, 2, 1, "draft")
    ('tp1', 'tp0.pp2.dp1.draft')
    """
    ranks = [f"pp{pp}" if pp else "", f"pcp{pcp}" if pcp else "", f"dp{dp}" if dp else ""]
    return ".".join(filter(None, [f"tp{tp}", *ranks, role if role != "target" else ""]))


def copied(place: str) -> str:
    """Return the place within one copy of the model.

    >>> copied("tp1.dp3/norm.weight"), copied("tp0.pp1/norm.weight")
    ('tp1/norm.weight', 'tp0.pp1/norm.weight')
    """
    rank, slash, name = place.partition("/")
    return _COPY.sub("", rank) + slash + name


def of_draft(place: str) -> bool:
    """Whether a place belongs to a draft model.

    >>> of_draft("tp0.draft/norm.weight"), of_draft("tp0.dp1/draft.weight")
    (True, False)
    """
    return any(_RANK.fullmatch(part) is None for part in place.partition("/")[0].split("."))
