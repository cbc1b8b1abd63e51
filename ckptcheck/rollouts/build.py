"""Builds the columns of rollouts from single sequences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import msgspec

from ckptcheck.rollouts.columns import SIDES
from ckptcheck.rollouts.metadata import Metadata, OmittedSequence
from ckptcheck.rollouts.rollouts import Rollouts
from ckptcheck.text.formatting import count

if TYPE_CHECKING:
    from numpy.typing import NDArray

Numbers = Sequence[float | None] | Sequence[float] | Sequence[int]


@dataclass
class Rollout:
    """One sequence: a prompt and its response.

    Logprobs are natural logarithms, one for every token (the first one's is ignored), for every token after the first, or for
    every token after the prompt. None: the sequence has no such logprobs.
    """

    tokens: Sequence[int]
    """Ids of the prompt and the response."""
    prompt: int
    """Number of prompt tokens."""
    engine: Numbers | None = None
    """The engine's logprobs."""
    trainer: Numbers | None = None
    """The trainer's logprobs."""
    reference: Numbers | None = None
    """The reference model's logprobs."""
    mask: Sequence[bool] | Sequence[int] | None = None
    """The response mask, of every token or of those after the prompt; None: all tokens after the prompt."""
    versions: Sequence[str] = ()
    """The weight version of each token after the prompt, or of each token; () if unknown."""
    reward: float | None = None
    """The reward of the response."""
    advantages: Numbers | float | None = None
    """The advantage of each token, laid out as logprobs are, or one number for all tokens after the prompt."""
    finish: str = ""
    """The finish reason, as the engine names it."""
    engine_routing: Any = None
    """Expert ids that the engine chose, [tokens, layers, k], of every token or of all but the last; -1: unknown."""
    trainer_routing: Any = None
    """The same of the trainer."""
    engine_top: tuple[Any, Any] | None = None
    """(ids, logprobs) of the engine's top k, each [tokens or tokens after the prompt, k]."""
    trainer_top: tuple[Any, Any] | None = None
    """The same of the trainer."""


class UnusableSequence(Exception):
    """A sequence cannot be put into columns. The message is a sentence without its full stop.

    Converters also put it into a list of sequences in place of one that they could not read.
    """


def build_rollouts(
    rollouts: Iterable[Rollout | UnusableSequence], metadata: Metadata | None = None, *, double: bool = False
) -> Rollouts:
    """Put sequences into columns. double: store logprobs as float64, else as float32.

    A sequence that does not fit (its lengths disagree, or it lacks logprobs that others have) is left out, and
    `Metadata.left_out` names it with the reason.
    """
    import numpy as np

    metadata = metadata or Metadata()
    sequences = list(rollouts)
    readable = [rollout for rollout in sequences if isinstance(rollout, Rollout)]
    optional_names = [
        name for name in _OPTIONAL_FIELDS if any(getattr(rollout, name) is not None for rollout in readable)
    ]
    has_masks = any(rollout.mask is not None for rollout in readable)
    rows: list[dict[str, NDArray[Any]]] = []
    fitting: list[Rollout] = []
    left_out: list[OmittedSequence] = list(metadata.left_out)
    for place, rollout in enumerate(sequences):
        try:
            if isinstance(rollout, UnusableSequence):
                raise rollout
            row = _build_row(rollout, optional_names, has_masks, double)
            _require_same_axes(row, rows[0] if rows else row)
            rows.append(row)
            fitting.append(rollout)
        except UnusableSequence as error:
            left_out.append(OmittedSequence(place, str(error)))
    columns: dict[str, NDArray[Any]] = {}
    for name in rows[0] if rows else ():
        columns[name] = np.concatenate([row[name] for row in rows])
    advantages = [_align_advantages(rollout) for rollout in fitting]
    if known := [values for values in advantages if values is not None]:
        # a sequence is not worth less without them, so all have them or none
        columns |= {"advantages": np.concatenate(known)} if len(known) == len(fitting) else {}
    columns.setdefault("tokens", np.zeros(0, "<i4"))
    lengths = [len(row["tokens"]) for row in rows]
    columns["starts"] = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype("<i8")
    columns["prompt_lengths"] = np.array([rollout.prompt for rollout in fitting], "<i4")
    if any(rollout.reward is not None for rollout in fitting):
        rewards = np.array([np.nan if rollout.reward is None else rollout.reward for rollout in fitting], "<f8")
        with np.errstate(over="ignore"):
            columns["rewards"] = rewards.astype("<f4")
    metadata = msgspec.structs.replace(metadata, left_out=left_out)
    if any(rollout.finish for rollout in fitting):
        words = sorted({rollout.finish for rollout in fitting if rollout.finish})
        places = {"": -1} | {word: place for place, word in enumerate(words)}
        columns["finish"] = np.array(
            [places[rollout.finish] for rollout in fitting], "<i2" if len(words) < 1 << 15 else "<i4"
        )
        metadata = msgspec.structs.replace(metadata, finish_reasons=words)
    spans, names = _list_version_spans(fitting, columns["starts"])
    if spans:
        columns["version_spans"] = np.array(spans, "<i8").reshape(-1, 3)
        metadata = msgspec.structs.replace(metadata, versions=names)
    return Rollouts(metadata, columns)


_OPTIONAL_FIELDS = (
    *SIDES, *(f"{side}_{word}" for word in ("routing", "top") for side in ("engine", "trainer")),
)  # fmt: skip


def _build_row(
    rollout: Rollout, optional_names: Sequence[str], has_masks: bool, double: bool
) -> dict[str, NDArray[Any]]:
    import numpy as np

    tokens = len(rollout.tokens)
    if not 0 <= rollout.prompt <= tokens:
        raise UnusableSequence(f"its prompt has {rollout.prompt:,} of its {count(tokens, 'token')}")
    ids = _to_array(rollout.tokens, "tokens", np.int64)
    if ids.ndim != 1:
        raise UnusableSequence("its tokens are no list of ids")
    if ids.size and (ids.min() < -(2**31) or ids.max() >= 2**31):
        raise UnusableSequence("it has a token id that is no 32-bit number")
    row: dict[str, NDArray[Any]] = {"tokens": ids.astype("<i4")}
    if has_masks:
        mask: Any = np.arange(tokens) >= rollout.prompt if rollout.mask is None else rollout.mask
        row["response_mask"] = _align_to_tokens(mask, rollout, "response mask", np.uint8, first=False) != 0
    for name in optional_names:
        value = getattr(rollout, name)
        if value is None:
            raise UnusableSequence(
                f"{name.replace('_', ' ')}{' logprobs are' if name in SIDES else ' is'} missing, although other sequences have "
                + ("them" if name in SIDES else "it")
            )
        if name in SIDES:
            row[f"{name}_logprobs"] = _align_to_tokens(
                value, rollout, f"{name} logprobs", np.float64 if double else np.float32
            )
        elif name.endswith("_routing"):
            row[name] = _align_routing(value, rollout)
        else:
            row[f"{name}_ids"] = _align_to_tokens(value[0], rollout, "top ids", np.int32, fill=-1)
            row[f"{name}_logprobs"] = _align_to_tokens(
                value[1], rollout, "top logprobs", np.float64 if double else np.float32
            )
    return row


def _to_array(values: Any, noun: str, dtype: Any) -> NDArray[Any]:
    """Turn lists into an array; None becomes NaN where numbers are floats, so that it is seen later."""
    import numpy as np

    try:
        if dtype in (np.float32, np.float64):
            with np.errstate(invalid="ignore"):  # a signalling NaN stays one, and is seen later
                array = np.asarray(values, dtype=np.float64)
        else:
            array = np.asarray(values if len(values) else np.zeros(0, dtype))
            # only a mask may hold booleans
            if array.dtype.kind not in ("iub" if dtype == np.uint8 else "iu"):
                raise TypeError
    except (TypeError, ValueError, OverflowError) as error:
        raise UnusableSequence(f"its {noun} are not all numbers") from error
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def _align_to_tokens(
    values: Any, rollout: Rollout, noun: str, dtype: Any, *, first: bool = True, fill: float = 0
) -> NDArray[Any]:
    """Put values where their tokens are; `fill` elsewhere. first: values of every token but the first are understood too."""
    import numpy as np

    array = _to_array(values, noun, dtype)
    if array.ndim != 1 and noun in _ONE_NUMBER_PER_TOKEN:
        raise UnusableSequence(f"its {noun} are not a number of each token")
    tokens, response = len(rollout.tokens), len(rollout.tokens) - rollout.prompt
    if not array.ndim or len(array) not in {tokens, response, *((tokens - 1,) if first else ())}:
        length = len(array) if array.ndim else 0
        raise UnusableSequence(
            f"it has {length:,} {noun} for {count(tokens, 'token')}, {response:,} of them after the prompt"
        )
    if len(array) == tokens:
        return array
    aligned = np.full((tokens, *array.shape[1:]), fill, dtype)
    if len(array):
        aligned[-len(array) :] = array
    return aligned


def _align_advantages(rollout: Rollout) -> NDArray[Any] | None:
    """Return a float32 of each token; None where the advantages are not known, or are not laid out as their writer does it."""
    import numpy as np

    values = rollout.advantages
    if values is None:
        return None
    if isinstance(values, (int, float)):
        values = [float(values)] * (len(rollout.tokens) - rollout.prompt)
    try:
        return _align_to_tokens(values, rollout, "advantages", np.float32)
    except UnusableSequence:
        return None


_ONE_NUMBER_PER_TOKEN = ("response mask", "advantages", *(f"{side} logprobs" for side in SIDES))


def _align_routing(value: Any, rollout: Rollout) -> NDArray[Any]:
    """Return [tokens, layers, k] from rows of every token, or of all but the last, whose row is then -1; int16 where ids fit."""
    import numpy as np

    array = _to_array(value, "expert ids", np.int32)
    tokens = len(rollout.tokens)
    if array.ndim != 3:
        raise UnusableSequence(
            f"its expert ids have the shape {list(array.shape)}, and [{tokens - 1}, layers, k] is expected"
        )
    if len(array) not in (tokens, tokens - 1):
        due = "all tokens but the last have one"
        raise UnusableSequence(f"it has {len(array):,} rows of expert ids for {count(tokens, 'token')}, and {due}")
    if len(array) < tokens:
        array = np.concatenate([array, np.full((1, *array.shape[1:]), -1, array.dtype)])
    is_small = array.size and array.min() >= -(2**15) and array.max() < 2**15
    return array.astype("<i2" if is_small else "<i4")


def _require_same_axes(row: Mapping[str, NDArray[Any]], first_row: Mapping[str, NDArray[Any]]) -> None:
    """Raise UnusableSequence where trailing axes are not those of the first sequence."""
    for name, values in row.items():
        if values.shape[1:] != first_row[name].shape[1:]:
            raise UnusableSequence(f"its {name} are not shaped as those of the first sequence")


def _list_version_spans(
    rollouts: Sequence[Rollout], starts: NDArray[Any]
) -> tuple[list[tuple[int, int, int]], list[str]]:
    """Return (begin, end, number of the version) of every run of tokens with one version, and the versions."""
    numbers: dict[str, int] = {}
    spans = []
    for rollout, start in zip(rollouts, starts.tolist(), strict=False):
        begin = start + len(rollout.tokens) - min(len(rollout.versions), len(rollout.tokens))
        for version, run in groupby(rollout.versions[: len(rollout.tokens)]):
            length = len(list(run))
            if version:
                spans.append((begin, begin + length, numbers.setdefault(str(version), len(numbers))))
            begin += length
    return spans, list(numbers)
