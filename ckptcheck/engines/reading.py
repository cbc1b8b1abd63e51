"""Reads what a far side says about an engine, and says to it what is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ckptcheck.engines.base import Answer, Entry, Leftover, Parcel, Scores, Scrambled
from ckptcheck.engines.sampling import Generation


def manifest(said: Iterable[Mapping[str, Any]]) -> dict[tuple[int, str], Entry]:
    """Read what every rank said of its tensors, in rank order."""
    found = {}
    for each in sorted(said, key=lambda one: one["rank"]):
        for name, kind, dtype, shape, nbytes, digest, place, opaque in each["entries"]:
            entry = Entry(name, each["rank"], kind, dtype, tuple(shape), nbytes, digest, place, opaque)
            found[each["rank"], name] = entry
    return found


def scrambled(said: Iterable[Mapping[str, Any]]) -> Scrambled:
    """Read what every rank marked and left."""
    names: set[tuple[int, str]] = set()
    left: dict[tuple[int, str], str] = {}
    for each in said:
        names |= {(each["rank"], name) for name in each["names"]}
        left |= {(each["rank"], name): why for name, why in each["left"].items()}
    return Scrambled(frozenset(names), left)


def leftovers(said: Iterable[Mapping[str, Any]]) -> dict[tuple[int, str], Leftover]:
    """Read what every rank found unwritten."""
    return {
        (each["rank"], name): Leftover(count, total, _pairs(ranges), blank, _pairs(blanks))
        for each in sorted(said, key=lambda one: one["rank"])
        for name, count, total, ranges, blank, blanks in each["entries"]
    }


def _pairs(ranges: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((begin, end) for begin, end in ranges)


def answer(said: Mapping[str, Any]) -> Answer:
    """Read what came of an update."""
    returned = said.get("returned")
    names = None if returned is None else tuple(returned)
    return Answer(said["ok"], said["message"], said["seconds"], names, said.get("version"))


def scores(said: Iterable[Mapping[str, Any]]) -> list[Scores]:
    """Read the scores of sequences."""
    return [
        Scores(
            tuple(each["prompt"]), tuple(each.get("decoded", ())), tuple(each.get("decode", ())), each.get("cached", 0)
        )
        for each in said
    ]


def generations(said: Iterable[Mapping[str, Any]]) -> list[Generation]:
    """Read what was generated."""
    return [
        Generation(
            tuple(each["tokens"]),
            tuple(each["logprobs"]),
            each["finish"],
            tuple(each.get("versions", ())),
            each.get("cached", 0),
        )
        for each in said
    ]


def by_rank(names: Iterable[tuple[int, str]], ranks: int) -> list[list[str]]:
    """Sort names by the rank that holds them."""
    wanted: list[list[str]] = [[] for _ in range(ranks)]
    for rank, name in names:
        wanted[rank].append(name)
    return wanted


def parcel(bucket: Parcel) -> dict[str, Any]:
    """Say a parcel as a far side takes it."""
    return {
        "address": dict(bucket.address),
        "names": list(bucket.names),
        "dtypes": list(bucket.dtypes),
        "shapes": [list(shape) for shape in bucket.shapes],
        "nbytes": bucket.nbytes,
    }
