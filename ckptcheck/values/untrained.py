"""Rows of embeddings and heads that were never trained, and whether the model will ever meet their tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ckptcheck.checkpoint.options import Options
from ckptcheck.rule import Skip
from ckptcheck.values.fresh import looks_untrained
from ckptcheck.values.rows import Rows, row_stats, suspects
from ckptcheck.values.uses import knows_ids, named, placeholders, reads_only

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

IDLE = re.compile(r"\bunk_token\b|\bpad_token")
"""Uses that do not put a token before the model."""
ZERO = "near zero"
"""How a row shows that has nothing in it."""
TAIL = 1 / 8
"""The share of a matrix's rows that are taken for padding at its end where nobody knows how many tokens there are."""
FAR_BELOW = 0.02
"""Share of the median row's mean magnitude below which a row has kept what it was allocated with."""
CLUSTER = 0.2
"""The same share for rows that are also alike and apart from the others; those of BERT's unused tokens lie at 0.4, in no gap."""
SUSPECT = 0.2
"""The same for the largest magnitude, which varies more from row to row: a row above it is not looked at twice."""


@dataclass(frozen=True)
class Untrained:
    """The untrained rows of one matrix. parts: the tensors that hold it. rows: id → how it shows. stats: of all rows.

    cluster: further rows, small and alike and apart from the others: as if drawn and never trained, which is likely and no more.
    """

    ckpt: Checkpoint
    name: str
    parts: tuple[str, ...]
    stats: Rows
    rows: dict[int, str]
    cluster: frozenset[int] = frozenset()

    @cached_property
    def padding(self) -> frozenset[int]:
        """The untrained rows that may be: nothing is ever read through them."""
        return self._aside(self.rows)

    @cached_property
    def clustered(self) -> frozenset[int]:
        """The cluster without the rows that may well be untrained."""
        return self.cluster - self._aside(self.cluster)

    def file(self, rows: Iterable[int]) -> str:
        """Return the file that holds the first of these rows."""
        end, first = 0, min(rows)
        for part in self.parts:
            end += self.ckpt.tensors[part].shape[0]
            if first < end:
                break
        return self.ckpt.holders[part]

    @cached_property
    def _held_at_zero(self) -> frozenset[int]:
        """The input row of config.json's padding token, whatever else it is: ``padding_idx`` of ``torch.nn.Embedding``.

        It starts at zero and gets no gradient, so it stays zero in every model whose output is another matrix.
        """
        config = self.ckpt.config
        pad = config.integer("pad_token_id") if config is not None else None
        if pad is None or self.name != self.ckpt.anatomy.embedding or self.rows.get(pad) != ZERO:
            return frozenset()
        return frozenset({pad}) if reads_only(self.ckpt, self.name) or looks_untrained(self.ckpt) else frozenset()

    @cached_property
    def tail(self) -> frozenset[int]:
        """Low rows that end the matrix and are padding for all that is known: the ids of the tokens are not.

        Of a Megatron run as many as may be padding; beside a tokenizer that cannot be read here (SentencePiece) up to TAIL.
        """
        if knows_ids(self.ckpt):
            return frozenset()
        number = len(self.stats.std)
        most = self.ckpt.padding if self.ckpt.tokenizer is None else int(TAIL * number)
        begin, low = number, self.rows.keys() | self.cluster
        while begin > number - most and begin - 1 in low and begin - 1 not in named(self.ckpt):
            begin -= 1
        return frozenset(range(begin, number))

    def _aside(self, rows: Iterable[int]) -> frozenset[int]:
        """Return the rows that no token has, that of a padding token that is nothing else, and those of placeholders."""
        tokenizer, config = self.ckpt.tokenizer, self.ckpt.config
        pad = config.integer("pad_token_id") if config is not None else None
        free = placeholders(self.ckpt) | self._held_at_zero | self.tail
        ends = {row for row, why in named(self.ckpt).items() if "eos" in why}

        def may_be(row: int) -> bool:
            why = (tokenizer.used(row) if tokenizer is not None else named(self.ckpt).get(row)) or ""
            nobody = tokenizer is not None and knows_ids(self.ckpt) and tokenizer.name(row) is None and row not in ends
            return row in free or nobody or "pad_token" in why or (row == pad and not why)

        return frozenset(row for row in rows if may_be(row))

    @cached_property
    def used(self) -> dict[int, str]:
        """Rows of tokens that the model will meet, as far as the files tell → why.

        The unknown token is not among them: tokenizers that fall back to bytes never emit it, and its row is zero in
        models as sound as Llama 2.
        """
        tokenizer = self.ckpt.tokenizer
        reasons = tokenizer.used if tokenizer is not None else named(self.ckpt).get
        found = {row: reasons(row) for row in self.rows if row not in self.padding}
        return {row: reason for row, reason in found.items() if reason is not None and not IDLE.search(reason)}

    def require_ids(self) -> None:
        """Skip a rule on used tokens that has found all it can, where rows are left that nobody can tell the tokens of."""
        if self.rows.keys() - self.padding - self.used.keys():
            if self.ckpt.tokenizer is None:
                raise Skip("there is no tokenizer to tell which tokens are used")
            self.ckpt.tokenizer.require_vocabulary()

    @property
    def summary(self) -> str:
        """The matrix in numbers, as NeMo-RL's script prints them."""
        stats = self.stats.finite
        tied = {True: "tied", False: "not tied", None: "tied or not: unknown"}[self.ckpt.anatomy.tied]
        low, high = float(stats.std.min()), float(stats.std.max())
        return (
            f"of {len(self.stats.std):,} rows; mean_abs={float(stats.mean_abs.mean()):.6f}, "
            f"max_abs={float(stats.max_abs.max()):.6f}, std_range=[{low:.6f}, {high:.6f}], {tied}"
        )


_JUDGED: WeakKeyDictionary[Checkpoint, list[Untrained]] = WeakKeyDictionary()


def untrained(ckpt: Checkpoint) -> list[Untrained]:
    """Judge the rows as `_judge` does, once for all rules."""
    if ckpt not in _JUDGED:
        _JUDGED[ckpt] = _judge(ckpt)
    return _JUDGED[ckpt]


def _judge(ckpt: Checkpoint) -> list[Untrained]:
    """Judge the rows of the embedding and of a head of its own. Raises Skip where values are not read."""
    if ckpt.value_reader is None:
        raise Skip(ckpt.no_values)
    import numpy as np

    found = []
    for name, parts in ckpt.vocabularies.items():
        loose = ckpt.options.identical > Options.identical  # rows that are not quite one number pass the glance
        if not suspects(ckpt, parts, ckpt.options.near_zero, SUSPECT) and not loose:
            continue
        stats = row_stats(ckpt, *parts, jobs=ckpt.jobs)
        rows: dict[int, str] = {}
        for how, mask in (
            ("far below the others", stats.far_below(FAR_BELOW)),
            ("one number throughout", stats.identical(ckpt.options.identical)),
            (ZERO, stats.near_zero(ckpt.options.near_zero)),
        ):
            rows |= dict.fromkeys(map(int, mask.nonzero()[0]), how)
        known = np.isin(np.arange(len(stats.std)), list(rows))
        alike = stats.cluster(CLUSTER, known, ckpt.tensors[parts[0]].shape[1])
        found.append(Untrained(ckpt, name, parts, stats, rows, frozenset(map(int, alike.nonzero()[0]))))
    return found
