"""The forms in which servers put expert routing into answers."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptcheck.rollouts.build import UnusableSequence
from ckptcheck.rollouts.convert import convert
from ckptcheck.rollouts.convert.routing_payload import decode_routing

ROWS = np.arange(24, dtype=np.int32).reshape(4, 3, 2)


def encode(rows: np.ndarray) -> str:
    """Return base64 of a .npy file, as vLLM sends it."""
    file = io.BytesIO()
    np.save(file, rows)
    return base64.b64encode(file.getvalue()).decode()


FORMS: dict[str, Any] = {
    "vllm": encode(ROWS),
    "prime-rl": {
        "data": base64.b64encode(ROWS.astype(np.uint8).tobytes()).decode(), "shape": [4, 3, 2], "dtype": "uint8", "start": 0,
    },
    "nemo-rl": "nrlre1:int16:4x3x2:" + base64.b64encode(ROWS.astype(np.int16).tobytes()).decode(),
    "lists": ROWS.tolist(),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    rows = decode_routing(FORMS[form], 5)
    assert rows is not None
    assert rows.tolist() == ROWS.tolist()


def test_rows_from_a_token_on() -> None:
    rows = decode_routing(encode(ROWS[2:]), 5, start=2)
    assert rows is not None
    assert rows.tolist() == [[[-1, -1]] * 3] * 2 + ROWS[2:].tolist()


@pytest.mark.parametrize(
    "payload",
    [
        "no base64!", FORMS["vllm"][:80], "nrlre1:int16:4x3x2:AAAA", "nrlre1:float32:1x1x1:AAAAAA==", "nrlre1:", 7,
        {"data": "AAAA"}, {"data": "AAAA", "shape": [10**9, 10**9], "dtype": "int32"},
        [[1], [2, 3]], [1, 2], encode(ROWS.astype(float)),
        "nrlre1:int8:-1x1x1:AA==", base64.b64encode(base64.b64decode(FORMS["vllm"]).replace(b"(4, 3, 2)", b"(9**14,1)")).decode(),
        base64.b64encode(base64.b64decode(FORMS["vllm"]).replace(b"(4, 3, 2), }", b"(9999999999)}")).decode(),
    ],
)  # fmt: skip
def test_unreadable(payload: Any) -> None:
    with pytest.raises(UnusableSequence):
        decode_routing(payload, 5)


def test_no_shape() -> None:
    assert decode_routing(base64.b64encode(ROWS.tobytes()).decode(), 5) is None
    assert decode_routing(None, 5) is None


def test_answers_of_vllm(tmp_path: Path) -> None:
    choice = {"index": 0, "finish_reason": "stop", "token_ids": [8, 9], "prompt_token_ids": [5, 6, 7]}
    choice |= {"logprobs": {"token_logprobs": [-0.5, -0.25], "tokens": ["a", "b"]}, "routed_experts": FORMS["vllm"]}
    (tmp_path / "answers.jsonl").write_text(json.dumps({"id": "1", "model": "m", "choices": [choice]}) + "\n")
    found, kind = convert([tmp_path / "answers.jsonl"])
    assert kind == "vllm"
    assert found.columns["engine_routing"][:4].tolist() == ROWS.tolist()
    assert found.columns["engine_routing"][4].tolist() == [[-1, -1]] * 3
