"""Compares the rows of related tokens: a word with and without a leading space, with a capital letter, and in the plural.

Training gives such words similar rows, whatever the model. So the rows show the tokens of training, and by how many
rows the ids of another tokenizer miss them. The similarity is the mean cosine of the rows about their mean. It is 0.60
for SmolLM2-135M and 0.66 for all-MiniLM-L6-v2 (plurals alone), and 0.01 for both if the ids are one off. With other
tokenizers it is 0.00 to 0.11, because frequent tokens have low ids and similar rows everywhere; less the similarity of
other pairs of nearby ids, it is within 0.004 of zero, 1.6 standard errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from math import sqrt
from typing import TYPE_CHECKING, Any

import msgspec

from ckptcheck.linter.evidence import remembered
from ckptcheck.linter.rule import Skip
from ckptcheck.text.formatting import count
from ckptcheck.values.detectors.init_detection import looks_untrained
from ckptcheck.values.detectors.row_stats import read_row_starts
from ckptcheck.values.dtypes import FORMATS, decode

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

SPACES = "Ġ▁"
"""How a token writes the space before it: as byte-level BPE does, and as SentencePiece does."""
MIN_LETTERS = 3
"""Letters of a word. Shorter tokens are pieces of many words."""
MIN_PAIRS = 200
"""With fewer pairs of related tokens a matrix is not judged."""
PREVIEW_TOKENS = 1 << 13
"""Tokens whose relatives the first look compares."""
ID_RANGES = 8
"""Ranges of ids that have to agree with each other."""
MIN_SIMILARITY = 0.25
"""Mean cosine of related tokens at which the rows surely belong to them."""
MAX_EXCESS, MAX_DEVIATIONS = 0.02, 4.0
"""By how much unrelated tokens may be more similar than other pairs of nearby ids, as a cosine and in standard errors.
A model of 3 million weights has 0.04 and 10 after 100 steps of training."""
NEARBY = (3, 5, 8, 13)
"""Pairs with nearby ids that each pair is compared with: how many pairs further they are."""
COLUMNS = 128
"""Elements of each row that the second look compares."""
MAX_SHIFT = 1024
"""Rows by which ids may miss: no tokenizer reserves or adds more tokens (tekken.json reserves 1,000)."""
COARSE_PAIRS, COARSE_COLUMNS = 2048, 32
"""Pairs, and elements of a row, with which every shift is tried."""
MIN_SHIFTED_PAIRS = 64
"""Pairs that a shift has to bring together."""
SAMPLED_ROWS = 2048
"""Rows among which the nearest neighbours show whether a matrix was trained."""
MIN_NEIGHBOUR_EXCESS = 0.05
"""How much closer, as a cosine, the nearest neighbours of a trained matrix are than those of random rows. SmolLM2: 0.089;
all-MiniLM-L6-v2: 0.077; rows of an initialiser: 0.002."""


class TokenFit(msgspec.Struct, frozen=True):
    """How well the rows of one matrix fit the tokens."""

    similarity: float
    """Mean cosine of related tokens' rows; of foreign rows, only of ids from `first` on."""
    pairs: int
    """The number of pairs in that mean."""
    first: int = 0
    """The first id that does not fit, as far as words with relatives show it."""
    shift: int = 0
    """From `first` on the row of an id is this many rows later (earlier, if negative)."""
    similarity_if_shifted: float = 0.0
    """The similarity if the shift were undone."""
    is_foreign: bool = False
    """Whether the rows from `first` on are trained but belong to other tokens."""

    @property
    def fits(self) -> bool:
        """Whether the rows may belong to the tokens."""
        return not self.shift and not self.is_foreign


@remembered
def compare_related_tokens(ckpt: Checkpoint, name: str) -> TokenFit | None:
    """Return how well the rows of an embedding or head fit the tokenizer; None if that cannot be judged.

    The first look takes the first 8 bytes of each row, which the value pass kept. The matrix is read again only if related
    tokens are not similar there, in all or in a range of ids. It does not judge packed and 8-bit numbers, vocabularies
    with fewer than MIN_PAIRS pairs, and untrained matrices. Raises Skip if the values could not be read, OSError if
    reading fails.
    """
    import numpy as np

    tensor, tokenizer = ckpt.tensors[name], ckpt.tokenizer
    form = FORMATS[tensor.dtype]
    if tokenizer is None or _has_several_tokenizers(ckpt) or not tensor.has_rows or form.integer or form.bits < 16:
        return None
    number = tensor.shape[0]
    step = max(1, len(tokenizer.ids) // PREVIEW_TOKENS)
    pairs = find_related_tokens(tokenizer.ids, number, step)
    if len(pairs) * step < MIN_PAIRS:
        return None
    # Other rules report a shard that could not be read.
    if name not in ckpt.values.row_fingerprints:
        raise Skip(f"{name} could not be read")
    with np.errstate(all="ignore"):
        similarity = _preview_similarity(ckpt, name, pairs)
        if similarity is not None:
            return TokenFit(similarity, len(pairs))
        if looks_untrained(ckpt):
            return None
        pairs = find_related_tokens(tokenizer.ids, number)
        return _judge(_normalize(read_row_starts(ckpt, name, COLUMNS, jobs=ckpt.jobs)), pairs)


def _has_several_tokenizers(ckpt: Checkpoint) -> bool:
    """Whether the model reads with one tokenizer and writes with another (Marian, encoder-decoders made of two models)."""
    config = ckpt.config.value if ckpt.config is not None else {}
    return "target_vocab.json" in ckpt.files or ("encoder" in config and "decoder" in config)


def find_related_tokens(ids: Mapping[str, int], rows: int, step: int = 1) -> NDArray[np.intp]:
    """Return the ids of related tokens, [pairs, 2], the lower id first; only ids of one of `rows` rows.

    Each lower-case word of ASCII letters is paired with itself after a space, with a capital letter, and with an s.
    step: take only every `step`-th token.
    """
    import numpy as np

    spaces = [mark for mark in SPACES if mark + "the" in ids or mark + "a" in ids]
    pairs = []
    for token, number in islice(ids.items(), 0, None, step):
        word = token.lstrip(SPACES)
        if not (len(word) >= MIN_LETTERS and word.islower() and word.isalpha() and word.isascii()):
            continue
        relatives = [token.replace(word, word.capitalize()), token + "s"]
        if len(word) == len(token):
            relatives += [mark + word for mark in spaces]
        pairs += [(number, ids[relative]) for relative in relatives if relative in ids]
    found = np.sort(np.array(pairs, np.intp).reshape(-1, 2), axis=1)
    return found[(found[:, 1] < rows) & (found[:, 0] < found[:, 1])]


def _preview_similarity(ckpt: Checkpoint, name: str, pairs: NDArray[np.intp]) -> float | None:
    """Return the mean product of related rows' first elements, in standard deviations; None unless all ids surely fit."""
    import numpy as np

    from ckptcheck.values.row_scan import FINGERPRINT_BYTES

    tensor = ckpt.tensors[name]
    form = FORMATS[tensor.dtype]
    width = FINGERPRINT_BYTES * 8 // form.bits
    patterns = np.frombuffer(ckpt.values.row_fingerprints[name], form.unsigned).reshape(-1, width)[:, : tensor.shape[1]]
    first = decode(tensor.dtype, patterns[pairs.ravel()].ravel()).astype(np.float32).reshape(*pairs.shape, -1)
    first -= np.median(first, axis=(0, 1))
    first /= np.median(np.abs(first), axis=(0, 1)) / 0.6745
    # A few outliers must not decide.
    first = np.nan_to_num(first).clip(-3, 3)
    products = (first[:, 0] * first[:, 1]).mean(axis=1) / max(float(np.square(first).mean()), 1e-9)
    similarity = float(products.mean())
    return similarity if similarity >= MIN_SIMILARITY and _agree_everywhere(products, pairs) else None


def _agree_everywhere(similarities: NDArray[np.floating[Any]], pairs: NDArray[np.intp]) -> bool:
    """Whether related tokens are about as similar in every range of ids."""
    import numpy as np

    ranges = np.array_split(similarities[np.argsort(pairs[:, 1])], ID_RANGES)
    return min(float(some.mean()) for some in ranges) >= float(similarities.mean()) / 2


def _normalize(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the rows less their mean, with length one; rows that are not finite become zero. Changes its argument."""
    import numpy as np

    rows[~np.isfinite(rows).all(axis=1)] = 0
    rows -= rows.mean(axis=0)
    return _scale(rows)


def _scale(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the rows scaled to length one; zero rows stay zero. Changes its argument."""
    import numpy as np

    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
    return rows


def _judge(rows: NDArray[np.float32], pairs: NDArray[np.intp]) -> TokenFit | None:
    """Judge by the rows themselves. rows: [number, columns], normalised."""
    import numpy as np

    if _neighbour_excess(rows) < MIN_NEIGHBOUR_EXCESS:
        return None
    # The last row stands for ids without a row.
    rows = np.concatenate([rows, np.zeros_like(rows[:1])])
    before = _similarities(rows, pairs)
    fit = TokenFit(float(before.mean()), len(pairs))
    if _agree_everywhere(before, pairs) and not _are_unrelated(rows, pairs):
        return fit if fit.similarity >= MIN_SIMILARITY else None
    if (shifted := _find_shift(rows, pairs, before)) is not None:
        return shifted
    first, judged = _find_break(before, pairs)
    if _are_unrelated(rows, judged) and _neighbour_excess(rows[first:-1]) >= MIN_NEIGHBOUR_EXCESS:
        # Rows of another kind may come before those of the text by design (sounds: Bark).
        similarity = float(_similarities(rows, judged).mean())
        return (
            TokenFit(similarity, len(judged), first, is_foreign=True) if first or not _has_offset(rows, pairs) else None
        )
    return fit if fit.similarity >= MIN_SIMILARITY else None


def _find_break(similarities: NDArray[np.float32], pairs: NDArray[np.intp]) -> tuple[int, NDArray[np.intp]]:
    """Return the first id from which related tokens may be unrelated, and the pairs with an id from there on.

    The id is 0 unless at least MIN_PAIRS pairs below it are similar and at least MIN_PAIRS remain.
    """
    import numpy as np

    order = np.argsort(pairs[:, 1], kind="stable")
    ordered = similarities[order].astype(np.float64)
    # From the break on, the cosines lie furthest below a bound between related and unrelated ones.
    start = int((ordered - MIN_SIMILARITY / 2)[::-1].cumsum()[::-1].argmin())
    if start < MIN_PAIRS or len(ordered) - start < MIN_PAIRS or ordered[:start].mean() < MIN_SIMILARITY:
        return 0, pairs
    return int(pairs[order[start], 1]), pairs[order[start:]]


def _are_unrelated(rows: NDArray[np.float32], pairs: NDArray[np.intp]) -> bool:
    """Whether related tokens are no more similar than the same tokens paired with tokens of nearby pairs."""
    import numpy as np

    pairs = pairs[np.argsort(pairs[:, 1], kind="stable")]
    others = [np.stack([pairs[:, 0], np.roll(pairs[:, 1], step)], axis=1) for step in NEARBY]
    excess = _similarities(rows, pairs) - np.mean([_similarities(rows, one) for one in others], axis=0)
    error = float(excess.std()) / sqrt(len(excess))
    return bool(excess.mean() < min(MAX_EXCESS, MAX_DEVIATIONS * error))


def _similarities(rows: NDArray[np.float32], pairs: NDArray[np.intp]) -> NDArray[np.float32]:
    """Return the cosine of each pair of rows."""
    import numpy as np

    cosines: NDArray[np.float32] = np.einsum("ij,ij->i", rows[pairs[:, 0]], rows[pairs[:, 1]])
    return cosines


def _find_shift(rows: NDArray[np.float32], pairs: NDArray[np.intp], before: NDArray[np.float32]) -> TokenFit | None:
    """Return the fit with the shift of a tail of ids that brings the most related tokens together; None if none clearly does.

    before: the cosine of each pair as the ids are.
    """
    some = pairs[:: max(1, len(pairs) // COARSE_PAIRS)]
    few = _scale(rows[:, :COARSE_COLUMNS].copy())
    most = min(MAX_SHIFT, len(rows) - 2)
    by = max(
        (by for by in range(-most, most + 1) if by),
        key=lambda by: float(_shift_gains(few, some, by)[::-1].cumsum().max()),
    )
    # Of equal starts the last one: ids without relatives prove nothing.
    first = len(rows) - 1 - int(_shift_gains(rows, pairs, by)[::-1].cumsum().argmax())
    if first <= pairs[:, 0].min():
        first = 0
    inside = pairs[:, 1] >= first
    restored = before.copy()
    moved = _move(pairs[inside], by * (pairs[inside] >= first), len(rows) - 1)
    restored[inside] = _similarities(rows, moved)
    after = float(restored[inside].mean()) if inside.sum() >= MIN_SHIFTED_PAIRS else 0.0
    if after < MIN_SIMILARITY or float(before[inside].mean()) >= after / 4:
        return None
    return TokenFit(float(before.mean()), len(pairs), first, by, float(restored.mean()))


def _move(ids: NDArray[np.intp], by: int | NDArray[np.intp], none: int) -> NDArray[np.intp]:
    """Return the rows that lie `by` further. none: the row that stands for rows outside the matrix."""
    import numpy as np

    moved = ids + by
    return np.where((moved < 0) | (moved >= none), none, moved)


def _shift_gains(rows: NDArray[np.float32], pairs: NDArray[np.intp], by: int) -> NDArray[np.float64]:
    """Return the similarity that a shift gains with each id."""
    import numpy as np

    low, high = pairs.T
    last = len(rows) - 1
    then_low, then_high = rows[_move(low, by, last)], rows[_move(high, by, last)]
    neither = np.einsum("ij,ij->i", rows[low], rows[high])
    higher = np.einsum("ij,ij->i", rows[low], then_high)
    both = np.einsum("ij,ij->i", then_low, then_high)
    # A shift from an id between the two moves the higher one, a shift from below moves both.
    gains: NDArray[np.float64] = np.bincount(high, higher - neither, len(rows)).astype(np.float64)
    gains += np.bincount(low, both - higher, len(rows))
    return gains


def _has_offset(rows: NDArray[np.float32], pairs: NDArray[np.intp]) -> bool:
    """Whether all ids miss their rows by one number, however large. It uses a few pairs and the first elements of rows.

    The rows that belong to the last ids have to exist, as in a model that reads sounds before texts (Bark). Halves of a vocabulary
    that changed places miss by one number too, but by one that leads beyond the end.
    """
    import numpy as np

    few = _scale(rows[:, :COARSE_COLUMNS].copy())
    low, high = pairs[:: max(1, len(pairs) // MIN_SHIFTED_PAIRS)].T
    for by in range(len(rows) - 1 - int(pairs.max())):
        if float(np.vdot(few[low + by], few[high + by])) > MIN_SIMILARITY * len(high):
            return True
    return False


def _neighbour_excess(rows: NDArray[np.float32]) -> float:
    """Return how much closer nearest neighbours of sampled rows are than after shuffling the elements of each column.

    Copies of a row are no neighbours: they show no training.
    """
    import numpy as np

    random = np.random.default_rng(0)
    sample: NDArray[Any] = rows[random.choice(len(rows), min(len(rows), SAMPLED_ROWS), replace=False)]
    means = []
    for some in (sample, _scale(random.permuted(sample, axis=0))):
        cosines = some @ some.T
        cosines[cosines > 0.99] = -1
        means.append(float(np.median(cosines.max(axis=1))))
    return means[0] - means[1]


def describe_misfit(ckpt: Checkpoint, name: str, fit: TokenFit) -> str:
    """Return a clause that says how the rows of a matrix miss the tokens. fit: one that does not fit."""
    alike = f"words and their forms (after a space, with a capital letter, with an s; {fit.pairs:,} pairs)"
    token = ckpt.tokenizer.token_for(fit.first) if ckpt.tokenizer is not None else None
    named = f" ({token})" if token is not None else ""
    begin = f"from about id {fit.first:,}{named} on, " if fit.first else ""
    # Zero without a sign.
    similarity = round(fit.similarity, 2) + 0.0
    if fit.is_foreign:
        return (
            f"{begin}the rows of {name} belong to other tokens than the tokenizer's: {alike} are no more alike there than "
            f"other tokens (mean cosine {similarity:.2f}), though the rows were trained"
        )
    where = "after" if fit.shift > 0 else "before"
    return (
        f"{begin}each token's row in {name} lies {count(abs(fit.shift), 'row', 'rows')} {where} its id: {alike} "
        f"have a mean cosine of {fit.similarity_if_shifted:.2f} there, and of {similarity:.2f} by their ids"
    )
