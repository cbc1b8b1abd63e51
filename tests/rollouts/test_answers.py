"""What real servers answered, as they sent it (fixtures/server_answers.py), against what the same engines say when ckptcheck asks.

Every greedy answer has the tokens that `ckptcheck parity record` has, and its logprobs but for rounding: servers compute in
other batches.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.rollouts import Rollouts, read_rollouts
from ckptcheck.rollouts.convert import convert
from tests.paths import DATA as TESTS_DATA

DATA = TESTS_DATA / "rollouts" / "answers"
NEAR = 1e-4
"""Nats."""
FRANCE, TWO, CHAT = range(3)
GREEDY = {
    "vllm-completions.json": (FRANCE, TWO),
    "vllm-completions-words.json": (FRANCE, TWO),  # no ids but as words
    "vllm-completions-echo.json": (FRANCE,),
    "vllm-chat.json": (CHAT,),
    "sglang-generate.json": (FRANCE, TWO),
    "sglang-completions.json": (FRANCE, TWO),
    "sglang-chat.json": (CHAT,),
}
DRAWN = ("vllm-completions-n.json", "sglang-generate-n.json")


def response(rollouts: Rollouts, number: int) -> tuple[list[int], list[float]]:
    where = rollouts.sequence(number)
    begin = where.start + int(rollouts.prompt_lengths[number])
    logprobs = rollouts.columns["engine_logprobs"][begin : where.stop].tolist()
    return rollouts.tokens[where].tolist(), logprobs


@pytest.mark.parametrize("of_vllm", ["vllm-completions.json", "vllm-chat.json"])
@pytest.mark.parametrize("of_sglang", ["sglang-generate.json", "sglang-completions.json", "sglang-chat.json"])
def test_answers_of_two_engines_are_not_of_one(tmp_path: Path, of_vllm: str, of_sglang: str) -> None:
    path = tmp_path / "both.jsonl"
    path.write_text("".join(json.dumps(json.loads((DATA / name).read_text())) + "\n" for name in (of_vllm, of_sglang)))
    with pytest.raises(CkptcheckError, match="holds answers of SGLang beside answers of another engine"):
        convert([path])


@pytest.mark.parametrize("name", GREEDY)
def test_a_greedy_answer_is_what_the_engine_says(name: str) -> None:
    engine = name.partition("-")[0]
    found, kind = convert([DATA / name])
    due = read_rollouts(DATA / f"{engine}-recorded.jsonl")
    assert (kind, found.sequence_count, found.metadata.left_out) == (engine, len(GREEDY[name]), [])
    for place, number in enumerate(GREEDY[name]):
        tokens, logprobs = response(found, place)
        wanted, said = response(due, number)
        assert tokens == wanted
        assert logprobs == pytest.approx(said, abs=NEAR)
        assert int(found.prompt_lengths[place]) == int(due.prompt_lengths[number])
    assert found.metadata.finish_reasons == ["length"]


@pytest.mark.parametrize("name", DRAWN)
def test_of_several_choices_each_is_a_sequence(name: str) -> None:
    found, _ = convert([DATA / name])
    assert found.sequence_count == 2
    (one, first), (other, second) = (response(found, number) for number in range(2))
    assert one[:5] == other[:5] == response(read_rollouts(DATA / "vllm-recorded.jsonl"), FRANCE)[0][:5]
    assert one != other
    assert len(first) == len(second) == 6
    assert max(*first, *second) < 0


def test_sglangs_answers_in_openais_form_are_told_from_vllms_and_have_versions() -> None:
    found, kind = convert([DATA / "sglang-completions.json"])
    assert kind == "sglang"
    assert found.metadata.engine is not None
    assert found.metadata.engine.name == "sglang"
    assert found.metadata.versions == ["default"]
    assert found.metadata.model == "SmolLM2-135M-Instruct"


def test_spans_of_weight_versions_are_those_of_the_answer(tmp_path: Path) -> None:
    answer: dict[str, Any] = json.loads((DATA / "sglang-generate.json").read_text())["response"][0]
    spans = [{"version": "7", "start": 0, "end": 2}, {"version": "8", "start": 2, "end": 6}]
    answer["meta_info"] |= {"weight_version": "8", "weight_versions": spans}
    (tmp_path / "a.json").write_text(json.dumps(answer))
    found, _ = convert([tmp_path / "a.json"])
    assert found.metadata.versions == ["7", "8"]
    assert found.columns["version_spans"].tolist() == [[5, 7, 0], [7, 11, 1]]


@pytest.mark.parametrize(
    "name", ["vllm-completions.json", "vllm-chat.json", "sglang-generate.json", "sglang-chat.json"]
)
def test_a_whole_answer_twice_is_two_answers(tmp_path: Path, name: str) -> None:
    pair = json.loads((DATA / name).read_text())
    once, _ = convert([DATA / name])
    for number, content in enumerate(([pair, pair], [*[pair["response"]] * 2])):
        path = tmp_path / f"{number}.jsonl"
        path.write_text("".join(json.dumps(each) + "\n" for each in content))
        twice, _ = convert([path])
        assert twice.tokens.tolist() == once.tokens.tolist() * 2


@pytest.mark.parametrize(
    "event",
    [
        {"object": "text_completion", "choices": [{"finish_reason": None, "token_ids": [2]}]},
        {"object": "chat.completion.chunk", "choices": [{"finish_reason": "stop", "delta": {}}]},
        {"output_ids": [2], "meta_info": {"finish_reason": None}},
    ],
)
def test_events_of_a_stream_are_refused(tmp_path: Path, event: dict[str, Any]) -> None:
    (tmp_path / "events.json").write_text(json.dumps(event))
    with pytest.raises(CkptcheckError, match="it holds events of streams"):
        convert([tmp_path / "events.json"])
