"""Whatever stands in a field of what frameworks, servers and people wrote: rollouts, or a sentence, in our own words."""

from __future__ import annotations

import copy
import json
import os
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules
from ckptcheck.reporters import render
from ckptcheck.rollouts import read_rollouts, write_lines, write_rollouts
from ckptcheck.rollouts.convert import convert
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from tests.factories.rollout_cases import draw_rollouts
from tests.fuzz import ODD
from tests.paths import DATA

ANSWERS = DATA / "rollouts" / "answers"
RULES = [rule for rule in rule_loader.load_rules() if rule.on in ("columns", "rollouts")]
PYTHON = re.compile(
    "has no attribute|iterable|unhashable|recursion|invalid literal|indices must|codec|subscriptable|operand|NoneType|"
    "inhomogeneous|out of bounds|broadcast|argument|cannot reshape|not supported|could not convert|str_digits"
)
HOLE = "HOLE-7f3a"

Place = tuple[str | int, ...]


def places(content: Any, above: Place = ()) -> Iterator[Place]:
    """Give the path of every value; of a list the first two elements."""
    yield above
    inner = (
        content.items() if isinstance(content, dict) else enumerate(content[:2]) if isinstance(content, list) else ()
    )
    for key, value in inner:
        yield from places(value, (*above, key))


def damaged(content: Any, place: Place, value: Any) -> Any:
    """Put a value in a place."""
    if not place:
        return value
    made = copy.deepcopy(content)
    inner = made
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return made


PRIME = {
    "schema_version": 1, "step": 9, "export_step": 8, "token_ids": [5, 6, 7, 8], "loss_mask": [False, False, True, True],
    "rewards": [None, 0.5], "inference_logprobs": [0.0, 0.0, -0.5, -0.25], "trainer_logprobs": [0.0, -3.0, -0.5, None],
}  # fmt: skip
SAMPLE = {
    "tokens": [1, 2, 3], "reward": 1.0, "response_length": 2, "loss_mask": [1, 0], "weight_versions": ["7"],
    "rollout_log_probs": [-0.1, -0.2], "rollout_routed_experts": [[[1, 2]], [[0, 1]]], "remove_sample": False, "status": "done",
}  # fmt: skip
TRAIN = {
    "tokens": [[1, 2, 3], [4, 5]], "response_lengths": [2, 1], "loss_masks": [[1, 0], [1]], "weight_versions": [["7"], ["7"]],
    "rollout_log_probs": [[-0.1, -0.2], [-1.0]], "log_probs": [[-0.1, -0.2], [-1.0]], "ref_log_probs": [[-0.1, -0.2], [-1.0]],
}  # fmt: skip
NEMO = {
    "token_ids": [[1, 2, 7, 8]], "token_loss_mask": [[0, 0, 1, 1]], "generation_logprobs": [[0, 0, -0.5, -0.25]], "rewards": [1.0],
    "prev_logprobs": [[0, -3.0, -0.5, -0.5]], "input_lengths": [4], "sample_loss_mask": [1.0], "idx": 0,
}  # fmt: skip
PIPELINE = {
    "input_ids": [1, 5, 6, 2], "labels": [-100, -100, 6, 2], "logprobs": [-0.5, -0.1], "ref_logprobs": [-0.4, -0.2],
    "reward": 1.0, "metadata": {"model_version": 64},
}  # fmt: skip
JSON: dict[str, list[Any]] = {
    **{name: [json.loads((ANSWERS / name).read_text())] for name in (
        "vllm-completions-words.json", "vllm-chat.json", "sglang-generate.json", "sglang-chat.json")},
    "prime-rl": [PRIME, PRIME],
    "nemo-rl": [NEMO, NEMO],
    "pipelinerl": [[PIPELINE, PIPELINE], [PIPELINE]],
}  # fmt: skip
PICKLES: dict[str, Any] = {
    "slime": {"rollout_id": 4, "samples": [SAMPLE, SAMPLE]},
    "slime-train": {"rollout_id": 4, "rank": 0, "rollout_data": TRAIN},
    "roll": {"input_ids": [[1, 5]], "attention_mask": [[1, 1]], "response_mask": [[0, 1]], "infer_logprobs": [[-0.5]]},
    "verl": {"prompts": [[1]], "responses": [[1]], "attention_mask": [[1, 1]], "advantages": [[0.5]]},
    "ms-swift": [
        {
            "model_inputs": {"input_ids": np.array([[1, 5]]), "attention_mask": np.array([[1, 1]])},
            "grpo_batch": {
                "completion_mask": np.array([[1]]),
                "truncated_mask": np.array([True]),
                "logits_to_keep": 1,
                "rollout_per_token_logps": np.array([[-0.5]]),
                "advantages": np.array([[0.5]]),
            },
        }
    ],
    "trl": {
        "prompt_ids": np.array([[0, 1], [1, 2]]),
        "prompt_mask": np.array([[0, 1], [1, 1]]),
        "completion_ids": np.array([[5], [6]]),
        "completion_mask": np.array([[1], [1]]),
        "old_per_token_logps": np.array([[-0.5, -1.0], [-1.0, -0.5]]),
        "max_left_pad": 1,
        "advantages": np.array([0.5, 1.0]),
    },
}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
ODDITIES = st.sampled_from(ODD) | VALUES.map(json.dumps)
examples = settings(
    max_examples=40, deadline=None, derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip


def check_converted(path: Path) -> None:
    refused = ""
    try:
        found, _ = convert([path])
    except CkptcheckError as error:
        refused = error.message
    assert not PYTHON.search(refused), refused
    if refused:
        return
    for each in found.metadata.left_out:
        assert not PYTHON.search(each.reason), each.reason
    again = path.with_suffix(".safetensors")
    write_rollouts(found, again)
    write_lines(found, path.with_suffix(".lines"))
    assert not read_rollouts(again).defects
    check_judged(path.with_suffix(".lines"))


def check_judged(path: Path) -> None:
    found = read_rollouts(path)
    for defect in found.defects:
        assert not PYTHON.search(defect.text), defect.text
    report = run_rules(RolloutEvidence("x", found), RULES)
    assert not report.crashed, report.crashed
    render("json", [report], RULES)
    if not found.defects:
        write_rollouts(found, path.with_suffix(".again"))


@pytest.mark.parametrize("name", JSON)
@examples
@given(st.data())
def test_odd_json_is_converted_or_refused_in_a_sentence(tmp_path: Path, name: str, data: st.DataObject) -> None:
    place = data.draw(st.sampled_from(sorted(places(JSON[name]), key=repr)))
    text = json.dumps(damaged(JSON[name], place, HOLE)).replace(f'"{HOLE}"', data.draw(ODDITIES))
    (tmp_path / "x.json").write_text(text)
    check_converted(tmp_path / "x.json")


@pytest.mark.parametrize("name", PICKLES)
@examples
@given(st.data())
def test_odd_objects_of_a_pickle_too(tmp_path: Path, name: str, data: st.DataObject) -> None:
    place = data.draw(st.sampled_from(sorted(places(PICKLES[name]), key=repr)))
    (tmp_path / "x.pt").write_bytes(pickle.dumps(damaged(PICKLES[name], place, data.draw(VALUES))))
    check_converted(tmp_path / "x.pt")


def whole() -> list[Any]:
    """Return the lines of rollouts with every kind of column."""
    from ckptcheck.rollouts import lines

    about = {
        "step": 3, "model": "org/m", "vocabulary": 100, "max_model_len": 99, "sampling": {"temperature": 0.5, "top_k": 3},
        "trainer": {"name": "t", "weight_version": "4", "temperature": 1.0}, "left_out": [{"number": 1, "reason": "x"}],
    }  # fmt: skip
    found = draw_rollouts(
        2,
        2,
        4,
        versions="3",
        layers=2,
        top=2,
        full=4,
        reference=True,
        metadata=about,
        groups=2,
        rewards=[1, 0],
        advantages=[0.5, -0.5],
    )
    return [json.loads(line) for line in lines._lines(found)]


LINES = whole()


@examples
@given(st.data())
def test_odd_lines_are_judged_or_named(tmp_path: Path, data: st.DataObject) -> None:
    place = data.draw(st.sampled_from(sorted(places(LINES), key=repr)[1:]))
    text = "\n".join(json.dumps(line) for line in damaged(LINES, place, HOLE))
    (tmp_path / "x.jsonl").write_text(text.replace(f'"{HOLE}"', data.draw(ODDITIES)))
    check_judged(tmp_path / "x.jsonl")
