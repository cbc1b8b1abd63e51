"""What is known of versions of engines: the file is sound, and an entry speaks only of what it is about."""

from __future__ import annotations

import re

import pytest

from ckptcheck.engines.base import EngineInfo, Entry, Kind
from ckptcheck.engines.known import faults, numbers, table, traits

TRAITS = {"cuda", "cpu", "plain", "stock", "tied", "draft", "dense", "experts", "int4", "int8", "fp8"}


def entry(name: str, dtype: str = "BF16", place: str = "1+0", kind: Kind = "parameter") -> Entry:
    return Entry(name, 0, kind, dtype, (2, 2), 8, "00", place)


def test_every_entry_can_fit_something_and_says_what_to_do() -> None:
    assert table()
    for known in table():
        assert known.engine in ("vllm", "sglang")
        assert known.traits
        assert known.traits <= TRAITS
        assert known.until is None or numbers(known.since) <= numbers(known.until)
        assert all(re.fullmatch(r"[\w-]+/[\w-]+#\d+", issue) for issue in known.issues)
        assert known.what[0] not in " ABCDEFGHIJKLMNOPQRSTUVWXYZ"
        assert not known.what.endswith(".")
        assert known.instead
        assert known in faults(known.engine, known.since, known.traits)


@pytest.mark.parametrize(
    ("engine", "version", "held", "number"),
    [
        ("vllm", "0.32.0", {"cpu", "stock", "tied", "dense"}, 1),
        ("vllm", "0.32.0", {"cpu", "plain", "tied", "dense"}, 0),
        ("vllm", "0.33.0", {"cpu", "stock", "tied"}, 0),
        ("vllm", "0.19.1", {"cuda", "experts"}, 0),
        ("vllm", "0.20.0+cu129", {"cuda", "experts"}, 1),
        ("sglang", "0.5.17", {"cuda", "experts", "int4"}, 1),
        ("sglang", "0.5.23", {"cuda", "experts", "int4"}, 0),
        ("sglang", "unknown", {"draft"}, 0),
    ],
)
def test_versions_and_traits_decide(engine: str, version: str, held: set[str], number: int) -> None:
    assert len(faults(engine, version, held)) == number


def test_traits_are_read_from_what_an_engine_holds() -> None:
    info = EngineInfo("vllm", "1", "bfloat16", 1, "X", {"device": "cpu", "mode": "stock"})
    entries = [
        entry("lm_head.weight"), entry("model.embed_tokens.weight"),
        entry("model.layers.0.mlp.experts.w13_weight_packed", "I32", "2+0"),
        entry("model.layers.0.self_attn.o_proj.weight", "I8", "3+0"), entry("draft:fc.weight", place="4+0"),
    ]  # fmt: skip
    found = traits(info, {(0, each.name): each for each in entries})
    assert found == {"cpu", "stock", "tied", "int4", "experts", "int8", "dense", "draft"}
    handed = {(0, "a.azp_adj"): entry("a.azp_adj", "F32")}
    assert traits(info, handed) == {"cpu", "stock", "int8", "dense"}
    plain = [entry("lm_head.weight"), entry("model.embed_tokens.weight", place="5+0")]
    assert traits(info, {(0, each.name): each for each in plain}) == {"cpu", "stock"}
