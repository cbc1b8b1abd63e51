"""Tests the decisions for vLLM and SGLang against the engines' own code, in their own environments."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.environments.interpreter import find_interpreter
from tests.consumers.compare import ask, differences
from tests.consumers.questions import questions

COMMON = ("compressed-tensors", "fp8", "gptq", "awq", "modelopt", "quark", "mxfp4")
ASKED = {
    "vllm": (COMMON, "RoutedExperts", "0.32.0"),
    "sglang": ((*COMMON, "bitsandbytes"), "FusedMoE", "0.5.23"),
}


@pytest.mark.engine
@pytest.mark.parametrize("consumer", ASKED)
def test_every_verdict_is_the_engines_own(consumer: str, tmp_path: Path) -> None:
    methods, experts, version = ASKED[consumer]
    try:
        python = find_interpreter(consumer)
    except CkptcheckError as missing:
        pytest.skip(f"{missing.message}: {missing.hint}")
    if python.version != version:
        pytest.skip(f"ckptcheck models {consumer} {version}, not {python.version}")
    asked = questions(methods, 3000, experts=experts)
    answers = ask(python.python, f"ask_{consumer}.py", asked, tmp_path, {**os.environ, **python.variables})
    found, agreed = differences(consumer, asked, answers)
    assert not found, f"{len(found)} verdicts differ:\n" + "\n".join(found[:5])
    for method in methods:
        assert agreed[f"{method} True"] > 50, agreed
        assert agreed[f"{method} False"] > 50, agreed
    assert agreed["compressed-tensors refused"] > 50
    assert agreed["unknown"] + sum(agreed[f"{method} unknown"] for method in methods) < 0.02 * agreed.total()
