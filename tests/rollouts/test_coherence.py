"""Texts that broken copies of SmolLM2-135M-Instruct wrote are no text, and what sound models write is.

The faults are those of the page of repeating-responses.
"""

from __future__ import annotations

import re

import pytest

from ckptcheck.rollouts import Rollout, build_rollouts
from ckptcheck.rollouts.coherence import find_nonsense, measure_nonsense

COMMONEST, COMMON, RARE = 300, 2_000, 30_000
"""Ids from which on the pieces of a text are numbered, of a vocabulary of 49,152."""


@pytest.mark.parametrize(
    ("text", "first", "sign"),
    [
        (" long,  ,   , , and,  .  .  and,  ,., ( , .", COMMON, "marks"),
        ("zeesasmodyearseshuckinghamushoppy invalessplitextessorsMeta forestationpansouts Totsixwidthasmodderr hisso"
         " pregnanciesizop seatsressespatic juvenestownoodle", RARE, "pieces"),
        (" comprom erad Totsixwidthasmodderr zeesasmodyearseshuckinghamushoppy a essplitextessorsMeta Nonfictionessim"
         " pregnanciesizop seatsressespatic", COMMON, None),  # long words of frequent pieces: names of functions
        ("Ditzer\x7f302903125 cle\x7f349 interaction w", COMMON, "control"),
        (".-. of.......,.. of. of... is of. of of of of of", COMMON, "stutter"),
        (" newaniger this combine,,,,,,,,,- vers. outs they matter", COMMON, "stutter"),
        (" on the I-----, a not- ( in- and as ( in on ( I the of a as not on S and L in N", COMMONEST, "common"),
        (" on the I-----, a not- ( in- and as ( in on", COMMONEST, None),  # too few
        ("A  \n \n\n\n\n\n\xa0\xa0 All\n\n", COMMON, "stutter"),
        ("The capital of France is Paris. It's a beautiful city, filled with history, art and food.", COMMON, None),
        ("Nước Việt Nam là một nước độc lập, thống nhất và toàn vẹn lãnh thổ, bao gồm đất liền.", RARE, None),
        ("Havaalanından şehir merkezine nasıl gidebilirim? Otobüs durağı sağ tarafta, köprünün altında.", RARE, None),
        ("def longest_run(values):\n    best, run, last = 0, 0, object()\n\treturn best\r\n", COMMON, None),
        ("x = 1000000000  --------  | 0 0 0 0 | = = = =", COMMON, None),
        ("今天天气很好。你呢？我也很好，谢谢。", RARE, None),
        ("", COMMON, None),
    ],
)  # fmt: skip
def test_what_is_no_text(text: str, first: int, sign: str | None) -> None:
    pieces = re.findall(r" ?\w{1,6}| ?[^\w\s]|\s", text)
    ids = {piece: first + number for number, piece in enumerate(dict.fromkeys(pieces))}
    names = {number: piece for piece, number in ids.items()}
    assert find_nonsense(text, [ids[piece] for piece in pieces], names.__getitem__, 49_152) == sign


def test_an_unknown_vocabulary_tells_nothing_of_rare_tokens() -> None:
    words = ["eforestationpansouts"] * 9
    found = [find_nonsense(" ".join(words), range(40_000, 40_009), lambda _: "xy", size) for size in (49_152, None)]
    assert found == ["pieces", None]


def test_what_a_tool_printed_is_not_the_models_text() -> None:
    tokens = [1, 2, *range(40, 60), *[7] * 20]
    alone, masked = (
        build_rollouts([Rollout(tokens, 2, [-0.5] * 40, mask=mask)]) for mask in (None, [True] * 20 + [False] * 20)
    )
    text = "The harbour freezes from the edges inwards."
    found = [
        measure_nonsense(rollouts, lambda ids: "," if set(ids) == {7} else text, None) for rollouts in (alone, masked)
    ]
    assert found == [{0: "stutter"}, {0: None}]
    assert find_nonsense("\x1b[32mpassed\x1b[0m in 3.2 s", [5, 6], lambda _: "x", None) is None
