"""What real servers answered, as they sent it (fixtures/server_answers.py), against what the same engines say when ckptcheck asks.

Every greedy answer has the tokens that `ckptcheck parity record` has, and its logprobs but for rounding: servers compute in
other batches.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.rollouts import Rollouts, read
from ckptcheck.rollouts.convert import convert

DATA = Path(__file__).parent.parent / "data" / "rollouts" / "answers"
NEAR = 1e-4
"""Nats."""
FRANCE, TWO, CHAT = range(3)
GREEDY = {
    "vllm-completions.json": (FRANCE, TWO),
    "vllm-completions-words.json": (FRANCE, TWO),  # no ids but as words
    "vllm-completions-echo.json": (FRANCE,),
    "vllm-chat.json": (CHAT,),
    "vllm-chat-stream.txt": (CHAT,),
    "sglang-generate.json": (FRANCE, TWO),
    "sglang-generate-stream.txt": (FRANCE,),
    "sglang-generate-stream-pieces.txt": (FRANCE,),
    "sglang-generate-batch-stream.txt": (FRANCE, TWO),
    "sglang-generate-batch-stream-pieces.txt": (FRANCE, TWO),
    "sglang-completions.json": (FRANCE, TWO),
    "sglang-completions-stream.txt": (FRANCE,),
    "sglang-chat.json": (CHAT,),
}
DRAWN = ("vllm-completions-n.json", "vllm-completions-stream.txt", "sglang-generate-n.json")


def response(rollouts: Rollouts, number: int) -> tuple[list[int], list[float]]:
    where = rollouts.sequence(number)
    begin = where.start + int(rollouts.prompts[number])
    logprobs = rollouts.columns["engine_logprobs"][begin : where.stop].tolist()
    return rollouts.tokens[where].tolist(), logprobs


@pytest.mark.parametrize("name", GREEDY)
def test_a_greedy_answer_is_what_the_engine_says(name: str) -> None:
    engine = name.partition("-")[0]
    found, kind = convert([DATA / name])
    due = read(DATA / f"{engine}-recorded.jsonl")
    assert (kind, found.number, found.metadata.left_out) == (engine, len(GREEDY[name]), [])
    for place, number in enumerate(GREEDY[name]):
        tokens, logprobs = response(found, place)
        wanted, said = response(due, number)
        assert tokens == wanted
        assert logprobs == pytest.approx(said, abs=NEAR)
        assert int(found.prompts[place]) == int(due.prompts[number])
    assert found.metadata.finish_reasons == ["length"]


@pytest.mark.parametrize("name", DRAWN)
def test_of_several_choices_each_is_a_sequence(name: str) -> None:
    found, _ = convert([DATA / name])
    assert found.number == 2
    (one, first), (other, second) = (response(found, number) for number in range(2))
    assert one[:5] == other[:5] == response(read(DATA / "vllm-recorded.jsonl"), FRANCE)[0][:5]
    assert one != other
    assert len(first) == len(second) == 6
    assert max(*first, *second) < 0


def test_a_stream_is_the_answer_that_is_not_streamed() -> None:
    whole, _ = convert([DATA / "vllm-completions-n.json"])
    stream, _ = convert([DATA / "vllm-completions-stream.txt"])  # two choices, one token at a time, mixed
    for number in range(2):
        (one, first), (other, second) = response(whole, number), response(stream, number)
        assert one == other
        assert first == pytest.approx(second, abs=NEAR)


def test_events_that_were_kept_as_json_lines_with_their_request(tmp_path: Path) -> None:
    lines = (DATA / "sglang-generate-stream.txt").read_text().split("\n")
    events = [json.loads(line[5:]) for line in lines if line.startswith("data: {")]
    asked = {"sampling_params": {"temperature": 0, "top_k": -1}}
    (tmp_path / "pair.jsonl").write_text(json.dumps({"request": asked, "response": events}) + "\n")
    (tmp_path / "bare.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    due = response(read(DATA / "sglang-recorded.jsonl"), FRANCE)
    for name in ("pair.jsonl", "bare.jsonl"):
        found, _ = convert([tmp_path / name])
        assert found.number == 1
        assert response(found, 0)[0] == due[0]
    pair, _ = convert([tmp_path / "pair.jsonl"])
    assert (pair.metadata.sampling.temperature, pair.metadata.sampling.top_k) == (0.0, 0)


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
