"""Finds rows of embeddings and heads that were never trained, and whether the model will meet their tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.checkpoint.scan_options import ScanOptions
from ckptcheck.linter.evidence import remembered
from ckptcheck.linter.rule import Skip
from ckptcheck.values.detectors.blank_weights import find_blank_tensors
from ckptcheck.values.detectors.init_detection import looks_untrained
from ckptcheck.values.detectors.row_stats import RowStats, compute_row_stats, may_have_untrained_rows
from ckptcheck.values.detectors.token_usage import (
    find_config_tokens,
    find_placeholder_tokens,
    has_token_ids,
    is_input_only,
)

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

UNUSED_ROLES = re.compile(r"\bunk_token\b|\bpad_token")
"""Reasons of use that do not put the token into the model's input."""
NEAR_ZERO = "near zero"
"""How a message describes an empty row."""
MAX_TAIL_SHARE = 1 / 8
"""Share of a matrix's rows that may count as padding at its end if the number of tokens is unknown."""
FAR_BELOW = 0.02
"""Share of the median row's mean magnitude. A row below it still holds the contents of its allocation."""
CLUSTER_SHARE = 0.2
"""The same share for rows of a cluster (see `RowStats.low_cluster`). BERT's unused tokens lie at 0.4, without a gap."""
SUSPECT_SHARE = 0.2
"""The same for the largest magnitude, which varies more from row to row. Rows above it are not read again."""


class UntrainedRows(msgspec.Struct, frozen=True, dict=True):
    """The untrained rows of one matrix."""

    ckpt: Checkpoint
    name: str
    parts: tuple[str, ...]
    """The tensors that hold the rows of the matrix, in order."""
    stats: RowStats
    """Statistics of all rows."""
    rows: dict[int, str]
    """Untrained row → the sign that shows it."""
    cluster: frozenset[int] = frozenset()
    """Further rows that are probably untrained: small, similar in size, and clearly smaller than all others."""

    @cached_property
    def padding_rows(self) -> frozenset[int]:
        """The untrained rows that may stay untrained, because the model never reads them."""
        return self._ignorable_rows(self.rows)

    @cached_property
    def cluster_rows(self) -> frozenset[int]:
        """The cluster without the rows that may stay untrained."""
        return self.cluster - self._ignorable_rows(self.cluster)

    def file(self, rows: Iterable[int]) -> str:
        """Return the file that holds the first of these rows."""
        end, first = 0, min(rows)
        for part in self.parts:
            end += self.ckpt.tensors[part].shape[0]
            if first < end:
                break
        return self.ckpt.tensor_to_file[part]

    @cached_property
    def _zero_padding_row(self) -> frozenset[int]:
        """The embedding row of config.json's pad_token_id, also if that token has other roles; empty if it is not zero.

        ``padding_idx`` of ``torch.nn.Embedding`` starts it at zero and gives it no gradient. So it stays zero in every model
        whose output is a separate matrix.
        """
        config = self.ckpt.config
        pad = config.integer("pad_token_id") if config is not None else None
        if pad is None or self.name != self.ckpt.components.embedding or self.rows.get(pad) != NEAR_ZERO:
            return frozenset()
        return frozenset({pad}) if is_input_only(self.ckpt, self.name) or looks_untrained(self.ckpt) else frozenset()

    @cached_property
    def tail_rows(self) -> frozenset[int]:
        """The low rows at the end of the matrix that may be padding, if the ids of the tokens are unknown.

        In a Megatron run, as many as its padding allows; with a tokenizer that ckptcheck cannot read (SentencePiece),
        up to MAX_TAIL_SHARE of all rows.
        """
        if has_token_ids(self.ckpt):
            return frozenset()
        number = len(self.stats.std)
        most = self.ckpt.padding if self.ckpt.tokenizer is None else int(MAX_TAIL_SHARE * number)
        begin, low = number, self.rows.keys() | self.cluster
        while begin > number - most and begin - 1 in low and begin - 1 not in find_config_tokens(self.ckpt):
            begin -= 1
        return frozenset(range(begin, number))

    @cached_property
    def unnamed_padding(self) -> frozenset[int]:
        """The one zero row of an embedding, if no file names a token; otherwise empty.

        It nearly always belongs to the padding token, which ``padding_idx`` of torch keeps at zero: a part of a
        checkpoint, such as the weights of an FSDP save, does not name that token.
        """
        is_named = self.ckpt.config is not None or self.ckpt.tokenizer is not None
        if is_named or self.name != self.ckpt.components.embedding or [*self.rows.values()] != [NEAR_ZERO]:
            return frozenset()
        return frozenset(self.rows)

    def _ignorable_rows(self, rows: Iterable[int]) -> frozenset[int]:
        """Return the rows without a token, of placeholders, and of a padding token without another role."""
        tokenizer, config = self.ckpt.tokenizer, self.ckpt.config
        pad = config.integer("pad_token_id") if config is not None else None
        # Inkling 2 pads its vocabulary, and computes no logits of the padding.
        unpadded = config.integer("unpadded_vocab_size") if config is not None else None
        padded = frozenset(range(unpadded, len(self.stats.std))) if unpadded else frozenset()
        ignorable = (
            find_placeholder_tokens(self.ckpt) | self._zero_padding_row | self.tail_rows | padded | self.unnamed_padding
        )
        eos_rows = {row for row, reason in find_config_tokens(self.ckpt).items() if "eos" in reason}

        def may_be(row: int) -> bool:
            reason = (
                tokenizer.why_used(row) if tokenizer is not None else find_config_tokens(self.ckpt).get(row)
            ) or ""
            has_no_token = (
                tokenizer is not None
                and has_token_ids(self.ckpt)
                and tokenizer.token_for(row) is None
                and row not in eos_rows
            )
            return row in ignorable or has_no_token or "pad_token" in reason or (row == pad and not reason)

        return frozenset(row for row in rows if may_be(row))

    @cached_property
    def used_rows(self) -> dict[int, str]:
        """Untrained row of a token that the model will meet according to the files → why.

        The unknown token is left out: tokenizers that fall back to bytes never emit it, and its row is zero in sound models
        such as Llama 2.
        """
        tokenizer = self.ckpt.tokenizer
        reasons = tokenizer.why_used if tokenizer is not None else find_config_tokens(self.ckpt).get
        uses = {row: reasons(row) for row in self.rows if row not in self.padding_rows}
        return {row: reason for row, reason in uses.items() if reason is not None and not UNUSED_ROLES.search(reason)}

    def require_token_ids(self) -> None:
        """Raise Skip if there are untrained rows whose tokens are unknown. A rule on used tokens calls it at its end."""
        if self.rows.keys() - self.padding_rows - self.used_rows.keys():
            if self.ckpt.tokenizer is None:
                raise Skip("there is no tokenizer to tell which tokens are used")
            self.ckpt.tokenizer.require_vocabulary()

    @property
    def summary(self) -> str:
        """Statistics of the matrix as text, in the words of NeMo-RL's script."""
        tied = {True: "tied", False: "not tied", None: "tied or not: unknown"}[self.ckpt.components.is_tied]
        return f"of {len(self.stats.std):,} rows; {self.stats.describe()}, {tied}"


def _is_all_zero(ckpt: Checkpoint, parts: tuple[str, ...]) -> bool:
    """Whether all parts of a matrix are zero, so that VAL003 reports it as a whole."""
    tensors = ckpt.values.tensors
    return ckpt.components.stack is not None and all(part in tensors and tensors[part].zero for part in parts)


@remembered
def find_untrained_rows(ckpt: Checkpoint) -> list[UntrainedRows]:
    """Return the untrained rows of the embedding and the head, computed once for all rules. Raises Skip if values are not read.

    A matrix that is zero as a whole does not count: other rules report it in one sentence.
    """
    ckpt.require_value_reader()
    import numpy as np

    matrices = []
    for name, parts in ckpt.vocabulary_tensors.items():
        if find_blank_tensors(ckpt) >= set(parts) or _is_all_zero(ckpt, parts):
            continue
        # With a larger threshold, rows of almost one number count too, which `row_max` does not show.
        has_loose_threshold = ckpt.options.identical > ScanOptions().identical
        if not may_have_untrained_rows(ckpt, parts, ckpt.options.near_zero, SUSPECT_SHARE) and not has_loose_threshold:
            continue
        stats = compute_row_stats(ckpt, *parts, jobs=ckpt.jobs)
        rows: dict[int, str] = {}
        for how, mask in (
            ("far below the others", stats.below_median_share(FAR_BELOW)),
            ("one number throughout", stats.identical(ckpt.options.identical)),
            (NEAR_ZERO, stats.near_zero(ckpt.options.near_zero)),
        ):
            rows |= dict.fromkeys(map(int, mask.nonzero()[0]), how)
        known_mask = np.isin(np.arange(len(stats.std)), list(rows))
        cluster = stats.low_cluster(CLUSTER_SHARE, known_mask, ckpt.tensors[parts[0]].shape[1])
        matrices.append(UntrainedRows(ckpt, name, parts, stats, rows, frozenset(map(int, cluster.nonzero()[0]))))
    return matrices
