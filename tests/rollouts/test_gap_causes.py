"""What a file shows of the causes of its gap: tokens that were not drawn, masks, shifts, traits in common; and none in noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ckptcheck.linter.rule_loader import load_rules
from ckptcheck.rollouts import Metadata, Rollout, Rollouts, build_rollouts
from ckptcheck.rollouts.outlier_traits import find_sequence_trait, find_token_trait
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.verbs.reports import build_report

RULES = load_rules()
Sequence = dict[str, Any]


def _draw(noise: str = "rounding", turns: int = 1, sequences: int = 32, seed: int = 0) -> list[Sequence]:
    """Draw sequences of several turns, with the text of a tool between them. A third of the drawn tokens is exactly sure."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(sequences):
        prompt = int(rng.integers(5, 30))
        parts: list[tuple[Any, Any, Any, bool]] = [
            (rng.integers(0, 999, prompt), np.zeros(prompt), -np.ones(prompt), False)
        ]
        for turn in range(turns):
            length = int(rng.integers(40, 200))
            engine = np.where(rng.random(length) < 0.3, 0.0, -rng.exponential(0.5, length))
            spread = {
                "rounding": 0.02 * rng.standard_normal(length),
                "heavy": 0.05 * rng.standard_t(2, length),
                "experts": np.where(
                    rng.random(length) < 0.03, rng.laplace(0, 0.3, length), 0.01 * rng.standard_normal(length)
                ),
            }[noise]
            trainer = np.minimum(engine + spread * np.minimum(1, -engine + 1e-3), 0)
            parts.append((rng.integers(0, 999, length), engine, trainer, True))
            if turn < turns - 1:
                size = int(rng.integers(8, 40))
                parts.append((rng.integers(0, 999, size), np.zeros(size), -rng.exponential(2, size), False))
        columns = {
            name: np.concatenate([part[place] for part in parts])
            for place, name in enumerate(("tokens", "engine", "trainer"))
        }
        mask = np.concatenate([np.full(len(part[0]), part[3]) for part in parts])
        made.append({**columns, "mask": mask, "prompt": prompt, "place": np.arange(len(mask))})
    return made


def _build(made: list[Sequence], **metadata: Any) -> Rollouts:
    return build_rollouts(
        [
            Rollout(
                each["tokens"], each["prompt"], each["engine"], each["trainer"], mask=each["mask"],
                finish=each.get("finish", ""), versions=each.get("versions", ()), engine_routing=each.get("routing"),
            )
            for each in made
        ],
        Metadata(**metadata),
    )  # fmt: skip


def _judge(made: list[Sequence], **metadata: Any) -> dict[str, str]:
    """Return the code of each finding about a gap → its message."""
    report = build_report(RolloutEvidence("step.safetensors", _build(made, **metadata)), RULES)
    assert not report.crashed
    return {finding.code: finding.message for finding in report.findings}


def _after_prompt(each: Sequence) -> Any:
    return each["place"] >= each["prompt"]


def _is_first_of_later_turn(each: Sequence) -> Any:
    return each["mask"] & ~np.roll(each["mask"], 1) & (each["place"] > each["prompt"])


@pytest.mark.parametrize("noise", ["rounding", "heavy", "experts"])
@pytest.mark.parametrize("turns", [1, 3])
def test_noise_has_no_cause(noise: str, turns: int) -> None:
    for seed in range(4):
        made = _draw(noise, turns, seed=seed)
        for each in made:
            half = len(each["mask"]) // 2
            each["versions"] = ["1"] * half + ["2"] * (len(each["mask"]) - half)
            each["routing"] = np.random.default_rng(seed).integers(0, 16, (len(each["mask"]), 3, 2))
        assert not {"PAR007", "PAR009", "PAR028", "PAR085", "PAR086"} & _judge(made).keys()


@pytest.mark.parametrize("noise", ["rounding", "heavy"])
def test_the_text_of_tools_is_counted_and_explains_the_gap(noise: str) -> None:
    made = _draw(noise, turns=3)
    tools = sum(int((_after_prompt(each) & ~each["mask"]).sum()) for each in made)
    for each in made:
        each["mask"] = _after_prompt(each)
    found = _judge(made)
    assert found.keys() <= {"PAR009", "PAR020"}
    tokens = int(found["PAR009"].split()[0].replace(",", ""))
    # a sure token beside such a text is counted with it
    assert tools <= tokens < 1.1 * tools
    assert "in 64 runs" in found["PAR009"]
    assert "mult_prob_error" not in found.get("PAR020", "")


def test_one_text_in_a_large_file_is_found() -> None:
    made = _draw("heavy", turns=2, sequences=64)
    made[9]["mask"] = _after_prompt(made[9])
    assert "in 1 of 64 sequences" in _judge(made)["PAR009"]


def test_the_only_token_of_a_nucleus_was_drawn() -> None:
    made = _draw()
    for each in made:
        alone = each["mask"] & (each["trainer"] > np.log(0.7))
        each["engine"] = np.where(alone, 0.0, each["engine"])
    assert "PAR009" not in _judge(made)


def test_an_inverted_mask_of_several_turns() -> None:
    made = _draw(turns=3)
    for each in made:
        each["mask"] = ~each["mask"]
    found = _judge(made)
    assert found.keys() == {"PAR085"}
    assert "inverted" in found["PAR085"]


@pytest.mark.parametrize(("by", "word"), [(1, "1 token late"), (2, "2 tokens late"), (-1, "1 token early")])
def test_a_mask_that_lies_off_in_several_turns(by: int, word: str) -> None:
    made = _draw(turns=3)
    for each in made:
        each["mask"] = np.roll(each["mask"], by)
    found = _judge(made)
    assert found.keys() == {"PAR085"}
    assert word in found["PAR085"]


def test_a_list_without_the_text_of_tools_is_the_one_cause() -> None:
    made = _draw(turns=3)
    for each in made:
        drawn, behind = each["engine"][each["mask"]], np.flatnonzero(_after_prompt(each))
        each["engine"] = np.zeros(len(each["mask"]))
        each["engine"][behind[: len(drawn)]] = drawn
    found = _judge(made)
    assert found.keys() == {"PAR028"}
    assert "in 32 of 32 sequences with a gap the engine's logprobs have no entries" in found["PAR028"]


@pytest.mark.parametrize("by", [1, -1])
def test_logprobs_that_are_moved_against_the_mask_are_no_fault_of_the_mask(by: int) -> None:
    made = _draw(turns=3)
    for each in made:
        each["engine"] = np.roll(each["engine"], by)
    assert _judge(made).keys() == {"PAR028"}


@pytest.mark.parametrize("begin", [0, 1])
def test_a_list_that_is_counted_from_the_prompt(begin: int) -> None:
    made = _draw()
    for each in made:
        drawn = each["engine"][each["prompt"] :]
        each["engine"] = np.zeros(len(each["mask"]))
        each["engine"][begin : begin + len(drawn)] = drawn
    found = _judge(made)
    assert found.keys() == {"PAR028"}
    assert "have no entries for the prompt" in found["PAR028"]


def test_a_mask_that_begins_late_where_the_converter_takes_the_prompt_from_it() -> None:
    made = _draw()
    for each in made:
        each["mask"] = np.roll(each["mask"], 1) & _after_prompt(each)
        each["prompt"] = int(each["mask"].argmax())
    assert "begins 1 token late" in _judge(made)["PAR085"]


def test_prompts_that_the_engine_scored_do_not_move_the_mask() -> None:
    made = _draw()
    for each in made:
        each["engine"] = np.where(_after_prompt(each), each["engine"], -0.7)
    assert not _judge(made)


def test_tokens_left_out_here_and_there_and_whole_turns_are_meant() -> None:
    made = _draw(turns=3)
    for number, each in enumerate(made):
        each["mask"] &= np.random.default_rng(number).random(len(each["mask"])) > 0.03
        if number % 3 == 0:
            each["mask"] &= each["place"] < each["place"][each["mask"]][-1] - 60
    assert "PAR085" not in _judge(made)


@pytest.mark.parametrize("noise", ["rounding", "experts"])
@pytest.mark.parametrize(
    ("chosen", "phrase"),
    [
        (lambda each: each["place"] == each["prompt"], "the first token of a response"),
        (_is_first_of_later_turn, "the first token after a stretch outside of the response mask"),
        (lambda each: each["place"] == len(each["mask"]) - 1, "the last token of a response"),
        (lambda each: each["place"] % 64 == 63, "at a position that is 63 modulo 64"),
        (lambda each: each["tokens"] == 5, "token 5"),
        (lambda each: (each["routing"][:, 1] == 3).any(-1), "routed to expert 3 of layer 1 by the engine"),
    ],
)
def test_what_far_tokens_have_in_common(noise: str, chosen: Callable[[Sequence], Any], phrase: str) -> None:
    made = _draw(noise, turns=3, sequences=64)
    rng = np.random.default_rng(1)
    for each in made:
        each["routing"] = np.stack([rng.permutation(12)[:2] for _ in range(len(each["mask"]) * 2)]).reshape(-1, 2, 2)
        each["trainer"] = np.where(chosen(each) & each["mask"], each["trainer"] - rng.exponential(4), each["trainer"])
    found = _judge(made)
    assert f"are {phrase}, as are" in found["PAR086"]
    assert "PAR020" not in found or "mult_prob_error" not in found["PAR020"]


def test_few_random_tokens_have_nothing_in_common() -> None:
    rng = np.random.default_rng(0)
    rollouts = build_rollouts([Rollout(list(rng.integers(0, 9, 40)), 4, [-9.0] * 36, [-5.0] * 36) for _ in range(6)])
    drawn = np.concatenate([np.arange(40 * number + 4, 40 * number + 40) for number in range(6)])
    found = 0
    for seed in range(300):
        bad = np.sort(np.random.default_rng(seed).choice(drawn, 8, replace=False))
        found += find_token_trait(rollouts, bad, lambda: iter([drawn])) is not None
    assert not found


def test_neighbours_in_one_sequence_say_no_more_than_one_of_them() -> None:
    rollouts = build_rollouts([Rollout(list(range(204)), 4, [-9.0] * 200, [-5.0] * 200) for _ in range(6)])
    drawn = np.concatenate([np.arange(204 * number + 4, 204 * number + 204) for number in range(6)])
    assert find_token_trait(rollouts, np.arange(208, 220), lambda: iter([drawn])) is None
    each_first = np.sort(np.concatenate([drawn[place::200] for place in range(2)]))
    found = find_token_trait(rollouts, each_first, lambda: iter([drawn]))
    assert found is not None
    assert found.trait.phrase == "among the first 2 tokens of a response"


@pytest.mark.parametrize(
    ("bad", "phrase"),
    [
        (range(8, 16), "responses to one prompt"),
        (range(2, 64, 8), "every 8th sequence from 2 on"),
        (range(20, 27), "sequences 20 to 26"),
    ],
)
def test_what_outlier_sequences_have_in_common(bad: range, phrase: str) -> None:
    made = [Rollout([number // 8, 1, *range(16)], 2, [-1.0] * 16) for number in range(64)]
    found = find_sequence_trait(build_rollouts(made), np.array(bad), np.arange(64))
    assert found is not None
    assert (found.trait.phrase, found.bad, found.others) == (phrase, len(bad), 0)


def test_random_sequences_have_nothing_in_common() -> None:
    made = []
    for number in range(64):
        length = 16 + number * 7 % 5
        made.append(
            Rollout([number // 8, 1, *range(length)], 2, [-1.0] * length, finish="stop" if number % 5 else "length")
        )
    rollouts = build_rollouts(made)
    found = 0
    for seed in range(200):
        bad = np.sort(np.random.default_rng(seed).choice(64, 3 + seed % 20, replace=False))
        found += find_sequence_trait(rollouts, bad, np.arange(64)) is not None
    assert found <= 1


def test_a_gap_that_begins_within_one_response() -> None:
    made = _draw(sequences=32)
    made[7]["trainer"] = np.where(
        each_late := made[7]["place"] >= made[7]["prompt"] + 20, made[7]["trainer"] - 2, made[7]["trainer"]
    )
    found = _judge(made)
    assert each_late.any()
    assert found.keys() == {"PAR024"}
    assert f"its gap begins within the response, at token {made[7]['prompt'] + 20} of sequence 7" in found["PAR024"]


def test_a_size_stands_behind_its_causes() -> None:
    made = _draw("heavy", turns=2)
    for each in made:
        each["mask"] = _after_prompt(each)
        each["trainer"] = np.where(each["engine"] < 0, each["trainer"] - 0.3, each["trainer"])
    report = build_report(RolloutEvidence("step.safetensors", _build(made)), RULES)
    assert [finding.code for finding in report.findings if finding.severity == "error"] == ["PAR009", "PAR020"]
    assert report.findings[1].hint == "fix first what PAR009 names: this may follow from it"


@pytest.mark.filterwarnings("error")
def test_the_largest_numbers_are_far_and_what_is_not_finite_is_not_compared() -> None:
    made = _draw(sequences=4)
    for each in made:
        at = each["prompt"] + 3
        each["engine"][at : at + 4] = (3e38, np.nan, -np.inf, -3e38)
        each["trainer"][at : at + 4] = (-3e38, -1, -1, 3e38)
    evidence = RolloutEvidence("step.safetensors", _build(made))
    assert len(evidence.causes.far) == 8
    assert not build_report(evidence, RULES).crashed
