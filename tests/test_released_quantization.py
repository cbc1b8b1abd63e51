"""Quantization configs of released models: no rule that reads them alone finds an error, whatever tool wrote them."""

from __future__ import annotations

from pathlib import Path

import pytest

import ckptcheck
from tests.factories.released_quantization import ReleasedQuantization, list_quantizations, write_quantization

RULES = ("QNT006", "QNT007", "QNT027", "QNT031", "ST013", "CFG002")
"""The rules that need no more than the configs and the names of the method's tensors."""
WARNINGS: dict[str, set[str]] = {
    "chatbot_kullm": {"QNT027"},  # the order of activations with groups
}
"""Model → codes of warnings that are right, each examined."""
ERRORS: dict[str, list[str]] = {
    "Qwen/Qwen3-32B-FP8-Static-PerTensor": ["QNT006 error"],
    "budecosystem/genz-70b": ["QNT027 error", "QNT027 error"],
}
"""Model → errors that are right. The first has no quant_method: transformers refuses it, and vLLM takes it for unquantized. The
second is GPTQ with 3 bits, for which neither vLLM nor SGLang has a kernel."""


@pytest.mark.parametrize("release", list_quantizations(), ids=lambda release: f"{release.model} {release.source[:30]}")
def test_a_released_config_has_no_error(release: ReleasedQuantization, tmp_path: Path) -> None:
    report = ckptcheck.scan(write_quantization(release, tmp_path / "model"), headers_only=True, select=RULES)
    assert not report.crashed
    # what is written packs a single module, which splits what an engine fuses
    judged = [one for one in report.findings if one.severity != "info" and "must match together" not in one.message]
    told = [f"{one.code} {one.severity} {one.message}" for one in judged]
    assert [text[:12] for text in told if " error " in text] == ERRORS.get(release.model, []), told
    told = [text for text in told if " error " not in text]
    assert {text.split()[0] for text in told} == WARNINGS.get(release.model, set()), told


def test_there_are_many() -> None:
    releases = list_quantizations()
    assert len(releases) >= 40
    assert len({release.method for release in releases}) >= 6
    assert sum("hf_quant_config.json" in release.files for release in releases) >= 15
