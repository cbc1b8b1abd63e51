"""Converts between the JSON of an engine's worker and the dataclasses of the client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ckptcheck.live.runtime.engines.base import (
    Arrival,
    Bucket,
    ExpertSlots,
    LoadedParameter,
    LoadedWeights,
    ScrambleResult,
    SequenceScores,
    TensorDigest,
    UnwrittenElements,
    UpdateResult,
    WeightPart,
)
from ckptcheck.live.runtime.engines.sampling import Generation

if TYPE_CHECKING:
    from ckptcheck.values.tensor_part import TensorPart


def decode_digests(reports: Iterable[Mapping[str, Any]]) -> dict[tuple[int, str], TensorDigest]:
    """Decode the tensors that every rank reports, in rank order."""
    digests = {}
    for report in sorted(reports, key=lambda report: report["rank"]):
        rank = report["rank"]
        for name, kind, dtype, shape, nbytes, digest, storage, opaque in report["entries"]:
            digests[rank, name] = TensorDigest(name, rank, kind, dtype, tuple(shape), nbytes, digest, storage, opaque)
    return digests


def decode_sums(pair: Sequence[int]) -> tuple[int, int]:
    """Return the two sums of a shard digest, which torch has as signed integers, modulo 2^64."""
    return pair[0] % (1 << 64), pair[1] % (1 << 64)


def decode_scalars(reports: Iterable[Mapping[str, Any]]) -> dict[tuple[int, str], float]:
    """Decode the numbers that every rank keeps on the host, in rank order."""
    return {
        (report["rank"], name): float(text) if is_float else int(text)
        for report in sorted(reports, key=lambda report: report["rank"])
        for name, is_float, text in report["entries"]
    }


def decode_scramble(reports: Iterable[Mapping[str, Any]]) -> ScrambleResult:
    """Decode which tensors every rank scrambled, and which it skipped."""
    names: set[tuple[int, str]] = set()
    skipped: dict[tuple[int, str], str] = {}
    for report in reports:
        names |= {(report["rank"], name) for name in report["names"]}
        skipped |= {(report["rank"], name): reason for name, reason in report["left"].items()}
    return ScrambleResult(frozenset(names), skipped)


def decode_unwritten(reports: Iterable[Mapping[str, Any]]) -> dict[tuple[int, str], UnwrittenElements]:
    """Decode the elements that every rank found unwritten, in rank order."""
    return {
        (report["rank"], name): UnwrittenElements(count, total, _as_pairs(ranges), nan_count, _as_pairs(nan_ranges))
        for report in sorted(reports, key=lambda report: report["rank"])
        for name, count, total, ranges, nan_count, nan_ranges in report["entries"]
    }


def decode_arrivals(reports: Iterable[Mapping[str, Any]]) -> LoadedWeights:
    """Decode what reached the loader of every rank, in rank order and in the order in which it arrived, and what it left."""
    ordered = sorted(reports, key=lambda report: report["rank"])
    return LoadedWeights(
        tuple(
            Arrival(name, report["rank"], dtype, tuple(shape), digest)
            for report in ordered
            for name, dtype, shape, digest in report["entries"]
        ),
        {
            (report["rank"], name): LoadedParameter(digest, storage)
            for report in ordered
            for name, digest, storage in report["loaded"]
        },
        max((report["seconds"] for report in ordered), default=0.0),
    )


def decode_slots(reports: Iterable[Mapping[str, Any]]) -> dict[tuple[int, str], ExpertSlots]:
    """Decode which expert lies in which slot on every rank, in rank order."""
    return {
        (report["rank"], name): ExpertSlots(tuple(experts), part, tuple(values))
        for report in sorted(reports, key=lambda report: report["rank"])
        for name, experts, part, values in report["entries"]
    }


def _as_pairs(ranges: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((begin, end) for begin, end in ranges)


def decode_update(reply: Mapping[str, Any]) -> UpdateResult:
    """Decode the result of an update."""
    names = reply.get("loaded_names")
    loaded_names = None if names is None else tuple(names)
    return UpdateResult(
        reply["ok"],
        reply["message"],
        reply["seconds"],
        loaded_names,
        reply.get("weight_version"),
        reply.get("refusal", ""),
    )


def decode_scores(replies: Iterable[Mapping[str, Any]]) -> list[SequenceScores]:
    """Decode the scores of sequences."""
    return [
        SequenceScores(
            tuple(reply["prompt_logprobs"]),
            tuple(reply.get("decoded_tokens", ())),
            tuple(reply.get("decode_logprobs", ())),
            reply.get("cached_tokens", 0),
        )
        for reply in replies
    ]


def decode_generations(replies: Iterable[Mapping[str, Any]]) -> list[Generation]:
    """Decode the responses of an engine."""
    return [
        Generation(
            tuple(reply["tokens"]),
            tuple(reply["logprobs"]),
            reply["finish_reason"],
            tuple(reply.get("weight_versions", ())),
            reply.get("cached_tokens", 0),
        )
        for reply in replies
    ]


def group_by_rank(names: Iterable[tuple[int, str]], ranks: int) -> list[list[str]]:
    """Return the names of each rank."""
    names_by_rank: list[list[str]] = [[] for _ in range(ranks)]
    for rank, name in names:
        names_by_rank[rank].append(name)
    return names_by_rank


def encode_parts(parts: Iterable[WeightPart], ranks: int) -> list[list[list[Any]]]:
    """Return the parts of each rank in their order, as `inventory.sum_parts` takes them."""
    by_rank: list[list[list[Any]]] = [[] for _ in range(ranks)]
    for part in parts:
        by_rank[part.rank].append(
            [part.name, part.begin, list(part.shape), part.pitch, list(part.origin), list(part.whole)]
        )
    return by_rank


def encode_pieces(pieces: Mapping[str, Sequence[TensorPart]]) -> dict[str, list[list[Any]]]:
    """Return the pieces of each joined weight as `shard_digest.sum_pieces` takes them, in elements."""
    return {
        name: [
            [
                piece.offset // piece.itemsize,
                list(piece.extent),
                [stride // piece.itemsize for stride in piece.strides],
                list(piece.origin),
                list(piece.shape),
            ]
            for piece in each
        ]
        for name, each in pieces.items()
    }


def decode_part_sums(
    parts: Iterable[WeightPart], sums_by_rank: Iterable[Sequence[Sequence[int]]]
) -> list[tuple[int, int]]:
    """Return the sums of the parts in their order, from those of each rank."""
    waiting = [iter(sums) for sums in sums_by_rank]
    return [decode_sums(next(waiting[part.rank])) for part in parts]


def encode_bucket(bucket: Bucket) -> dict[str, Any]:
    """Encode a bucket as JSON for a worker."""
    return {
        "address": dict(bucket.address),
        "names": list(bucket.names),
        "dtypes": list(bucket.dtypes),
        "shapes": [list(shape) for shape in bucket.shapes],
        "nbytes": bucket.nbytes,
    }
