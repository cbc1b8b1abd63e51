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
    due = response(read_rollouts(DATA / "sglang-recorded.jsonl"), FRANCE)
    for name in ("pair.jsonl", "bare.jsonl"):
        found, _ = convert([tmp_path / name])
        assert found.sequence_count == 1
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


def said(*contents: Any) -> tuple[list[list[int]], list[str]]:
    """Tokens of what is joined, and why the rest is not."""
    from ckptcheck.rollouts.build import Rollout
    from ckptcheck.rollouts.convert.responses import sglang

    found = sglang(list(contents))[0]
    whole = [list(each.tokens) for each in found if isinstance(each, Rollout)]
    return whole, [str(each) for each in found if not isinstance(each, Rollout)]


def event(token: int, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": finish, "token_ids": [token], "logprobs": {"token_logprobs": [-1.0]}, **more}
    return {"id": "a", "object": "text_completion", "prompt_token_ids": [1], "choices": [choice]}


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


@pytest.mark.parametrize("name", [name for name in (*GREEDY, *DRAWN) if "stream" in name])
def test_a_stream_twice_is_two_and_one_cut_off_is_left_out(tmp_path: Path, name: str) -> None:
    raw = (DATA / name).read_bytes()
    once, _ = convert([DATA / name])
    (tmp_path / "twice.txt").write_bytes(raw + raw)
    assert convert([tmp_path / "twice.txt"])[0].tokens.tolist() == once.tokens.tolist() * 2
    last = raw.rindex(b"data: {")
    for end in (last, last + 40):  # after an event, and within one
        (tmp_path / "cut.txt").write_bytes(raw + raw[:end])
        found, _ = convert([tmp_path / "cut.txt"])
        left = [each.reason for each in found.metadata.left_out]
        assert (found.sequence_count + len(left), len(left)) == (2 * once.sequence_count, 1), left
        assert left[0].startswith(("its stream ends before", "an event of its stream is lost: it is no JSON: "))


def test_events_are_joined_until_their_choice_ends() -> None:
    assert said(event(2), event(3, "stop"), event(2), event(4, "stop")) == ([[1, 2, 3], [1, 2, 4]], [])
    other = event(9, "stop", index=1)
    assert said(event(2), other, event(3, "stop"), {**other, "choices": []}) == ([[1, 2, 3], [1, 9]], [])
    short = {"id": "b", "object": "text_completion", "choices": []}  # one token, and then what was used
    assert said({**event(2, "stop"), "id": "b"}, short) == ([[1, 2]], [])
    assert said(event(2), event(3)) == ([], ["its stream ends before the answer does"])
    chunk = {**event(2), "object": "chat.completion.chunk"}
    assert said(chunk) == ([], ["its stream ends before the answer does"])
    assert said({**chunk, "object": "chat.completion"}) == ([[1, 2]], [])


def test_a_hole_in_a_stream_is_no_answer() -> None:
    lost = "an event of its stream is lost: choices[0].token_ids[0] is text, and a whole number is due"
    assert said(event(2), event("x"), event(3, "stop"), event(4, "stop")) == ([[1, 4]], [lost])  # type: ignore[arg-type]
    error = {"error": {"message": "out of memory"}}
    assert said(event(2), error)[1] == [
        "an event of its stream is lost: the server answered with an error: out of memory"
    ]
    told = {"id": "g", "prompt_tokens": 1, "completion_tokens": 3, "input_token_logprobs": [[None, 1, None]]}
    pieces = [
        {"output_ids": [each], "meta_info": {**told, "completion_tokens": each, "output_token_logprobs": [[-1.0, each, None]],
                                             "finish_reason": "stop" if each == 3 else None}}
        for each in (1, 2, 3)
    ]  # fmt: skip
    assert said(*json.loads(json.dumps(pieces))) == ([[1, 1, 2, 3]], [])
    assert said(pieces[0], pieces[2]) == ([], ["events of its stream are lost: it has 2 of its 3 tokens"])


def test_events_without_an_id_say_so() -> None:
    bare = [{key: value for key, value in each.items() if key != "id"} for each in (event(2), event(3, "stop"))]
    assert said(*bare) == ([], ["it is of a stream whose events have no id, so that they cannot be put together"] * 2)
    assert said(bare[1], bare[1]) == ([[1, 3]] * 2, [])
