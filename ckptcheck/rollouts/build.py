"""Puts sequences, one by one, into columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import msgspec

from ckptcheck.phrase import count
from ckptcheck.rollouts.columns import SIDES
from ckptcheck.rollouts.metadata import LeftOut, Metadata
from ckptcheck.rollouts.rollouts import Rollouts

if TYPE_CHECKING:
    from numpy.typing import NDArray

Numbers = Sequence[float | None] | Sequence[float] | Sequence[int]


@dataclass
class Rollout:
    """One sequence: prompt and response. prompt: how many of the tokens it is.

    engine, trainer, reference: logprobs, of every token (the first one's is ignored), of every token after the first, or
    of every token after the prompt. mask: of every token or of those after the prompt; None: all after the prompt.
    versions: the weight version of each token after the prompt, or of each token; () where none is known.
    engine_routing, trainer_routing: expert ids [tokens, layers, k], of every token or of all but the last (-1: unknown).
    engine_top, trainer_top: (ids, logprobs), each [tokens or tokens after the prompt, k].
    """

    tokens: Sequence[int]
    prompt: int
    engine: Numbers | None = None
    trainer: Numbers | None = None
    reference: Numbers | None = None
    mask: Sequence[bool] | Sequence[int] | None = None
    versions: Sequence[str] = ()
    reward: float | None = None
    finish: str = ""
    engine_routing: Any = None
    trainer_routing: Any = None
    engine_top: tuple[Any, Any] | None = None
    trainer_top: tuple[Any, Any] | None = None


class Misfit(Exception):
    """A sequence cannot be put into columns. The message is a sentence without its full stop.

    In the place of a sequence it says that there is one, and why it could not be read.
    """


def gathered(
    rollouts: Iterable[Rollout | Misfit], metadata: Metadata | None = None, *, double: bool = False
) -> Rollouts:
    """Put sequences into columns. double: keep logprobs as float64, else float32.

    A sequence that does not fit (lengths that disagree, logprobs that others have and it lacks) is left out, and the
    metadata say so: nothing is lost in silence.
    """
    import numpy as np

    metadata = metadata or Metadata()
    given = list(rollouts)
    there = [each for each in given if isinstance(each, Rollout)]
    wanted = [name for name in _OPTIONAL if any(getattr(each, name) is not None for each in there)]
    masked = any(each.mask is not None for each in there)
    rows: list[dict[str, NDArray[Any]]] = []
    kept: list[Rollout] = []
    left: list[LeftOut] = list(metadata.left_out)
    for number, each in enumerate(given):
        try:
            if isinstance(each, Misfit):
                raise each
            row = _row(each, wanted, masked, double)
            _alike(row, rows[0] if rows else row)
            rows.append(row)
            kept.append(each)
        except Misfit as misfit:
            left.append(LeftOut(number, str(misfit)))
    columns: dict[str, NDArray[Any]] = {}
    for name in rows[0] if rows else ():
        columns[name] = np.concatenate([row[name] for row in rows])
    columns.setdefault("tokens", np.zeros(0, "<i4"))
    lengths = [len(row["tokens"]) for row in rows]
    columns["starts"] = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype("<i8")
    columns["prompt_lengths"] = np.array([each.prompt for each in kept], "<i4")
    if any(each.reward is not None for each in kept):
        rewards = np.array([np.nan if each.reward is None else each.reward for each in kept], "<f8")
        with np.errstate(over="ignore"):
            columns["rewards"] = rewards.astype("<f4")
    metadata = msgspec.structs.replace(metadata, left_out=left)
    if any(each.finish for each in kept):
        words = sorted({each.finish for each in kept if each.finish})
        places = {"": -1} | {word: place for place, word in enumerate(words)}
        columns["finish"] = np.array([places[each.finish] for each in kept], "<i2" if len(words) < 1 << 15 else "<i4")
        metadata = msgspec.structs.replace(metadata, finish_reasons=words)
    spans, names = _spans(kept, columns["starts"])
    if spans:
        columns["version_spans"] = np.array(spans, "<i8").reshape(-1, 3)
        metadata = msgspec.structs.replace(metadata, versions=names)
    return Rollouts(metadata, columns)


_OPTIONAL = (*SIDES, "engine_routing", "trainer_routing", "engine_top", "trainer_top")


def _row(each: Rollout, wanted: Sequence[str], masked: bool, double: bool) -> dict[str, NDArray[Any]]:
    import numpy as np

    number = len(each.tokens)
    if not 0 <= each.prompt <= number:
        raise Misfit(f"its prompt has {each.prompt:,} of its {count(number, 'token')}")
    ids = _numbers(each.tokens, "tokens", np.int64)
    if ids.ndim != 1:
        raise Misfit("its tokens are no list of ids")
    if ids.size and (ids.min() < -(2**31) or ids.max() >= 2**31):
        raise Misfit("it has a token id that is no 32-bit number")
    row: dict[str, NDArray[Any]] = {"tokens": ids.astype("<i4")}
    if masked:
        mask: Any = np.arange(number) >= each.prompt if each.mask is None else each.mask
        row["response_mask"] = _placed(mask, each, "response mask", np.uint8, first=False) != 0
    for name in wanted:
        value = getattr(each, name)
        if value is None:
            raise Misfit(f"it has no {name.replace('_', ' ')}{' logprobs' if name in SIDES else ''}, and others have")
        if name in SIDES:
            row[f"{name}_logprobs"] = _placed(value, each, f"{name} logprobs", np.float64 if double else np.float32)
        elif name.endswith("_routing"):
            row[name] = _routing(value, each)
        else:
            row[f"{name}_ids"] = _placed(value[0], each, "top ids", np.int32, fill=-1)
            row[f"{name}_logprobs"] = _placed(value[1], each, "top logprobs", np.float64 if double else np.float32)
    return row


def _numbers(values: Any, what: str, dtype: Any) -> NDArray[Any]:
    """Turn lists into an array; None becomes NaN where numbers are floats, so that it is seen later."""
    import numpy as np

    try:
        if dtype in (np.float32, np.float64):
            found = np.asarray(values, dtype=np.float64)
        else:
            found = np.asarray(values if len(values) else np.zeros(0, dtype))
            if found.dtype.kind not in ("iub" if dtype == np.uint8 else "iu"):  # only a mask has truth values
                raise TypeError
    except (TypeError, ValueError, OverflowError) as error:
        raise Misfit(f"its {what} are not all numbers") from error
    with np.errstate(over="ignore"):
        return found.astype(dtype)


def _placed(values: Any, each: Rollout, what: str, dtype: Any, *, first: bool = True, fill: float = 0) -> NDArray[Any]:
    """Put values where their tokens are; `fill` elsewhere. first: values of every token but the first are understood too."""
    import numpy as np

    found = _numbers(values, what, dtype)
    if found.ndim != 1 and what in _FLAT:
        raise Misfit(f"its {what} are not a number of each token")
    number, response = len(each.tokens), len(each.tokens) - each.prompt
    if not found.ndim or len(found) not in {number, response, *((number - 1,) if first else ())}:
        length = len(found) if found.ndim else 0
        raise Misfit(f"it has {length:,} {what} for {count(number, 'token')}, {response:,} of them after the prompt")
    if len(found) == number:
        return found
    placed = np.full((number, *found.shape[1:]), fill, dtype)
    if len(found):
        placed[-len(found) :] = found
    return placed


_FLAT = ("response mask", *(f"{side} logprobs" for side in SIDES))


def _routing(value: Any, each: Rollout) -> NDArray[Any]:
    import numpy as np

    found = _numbers(value, "expert ids", np.int32)
    number = len(each.tokens)
    if found.ndim != 3 or len(found) not in (number, number - 1):
        raise Misfit(f"its expert ids have the shape {list(found.shape)}, and [{number}, layers, k] is due")
    found = found.astype("<i2") if found.size and found.min() >= -(2**15) and found.max() < 2**15 else found
    return found if len(found) == number else np.concatenate([found, np.full((1, *found.shape[1:]), -1, found.dtype)])


def _alike(row: Mapping[str, NDArray[Any]], due: Mapping[str, NDArray[Any]]) -> None:
    """Raise Misfit where trailing axes are not those of the first sequence."""
    for name, values in row.items():
        if values.shape[1:] != due[name].shape[1:]:
            raise Misfit(f"its {name} are not shaped as those of the first sequence")


def _spans(kept: Sequence[Rollout], starts: NDArray[Any]) -> tuple[list[tuple[int, int, int]], list[str]]:
    """Return (begin, end, number of the version) of every run of tokens with one version, and the versions."""
    numbers: dict[str, int] = {}
    spans = []
    for each, start in zip(kept, starts.tolist(), strict=False):
        at = start + len(each.tokens) - min(len(each.versions), len(each.tokens))
        for version, run in groupby(each.versions[: len(each.tokens)]):
            length = len(list(run))
            if version:
                spans.append((at, at + length, numbers.setdefault(str(version), len(numbers))))
            at += length
    return spans, list(numbers)
