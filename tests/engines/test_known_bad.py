"""The list of versions that are known to be bad: read whole, and held against engines that run."""

from __future__ import annotations

import re

from ckptcheck.engines.base import EngineInfo
from ckptcheck.engines.known_bad import Running, known
from ckptcheck.refit.trace import RefitTrace


def test_every_entry_says_where_it_was_seen_and_under_which_conditions() -> None:
    assert known()
    for bad in known():
        assert bad.engine in ("vllm", "sglang")
        assert re.search(r"^[\w.-]+/[\w.-]+#\d+|^ckptcheck refit ", bad.seen), bad
        assert bad.architecture, "one that concerns every model would warn about every model"
        re.compile(bad.architecture)


def test_versions_are_compared_by_number() -> None:
    (bad,) = (each for each in known() if "mixer.D" in each.what)
    found = {
        version: bad.concerns(Running("vllm", version, "cuda", "NemotronHForCausalLM"))
        for version in ("0.21.9", "0.22", "0.22.0", "0.22.1+cu130", "0.23.0rc1", "0.9", "", "main")
    }
    assert [version for version, concerned in found.items() if concerned] == ["0.22", "0.22.0", "0.22.1+cu130"]


def test_a_trial_offers_what_it_runs() -> None:
    assert RefitTrace("a").aspect("engines") is None
    facts = {"device": "cpu", "mode": "plain"}
    trace = RefitTrace("a", engine=EngineInfo("vllm", "0.32.0", "float32", 1, "Qwen3MoeForCausalLM", facts))
    assert trace.aspect("engines") == (Running("vllm", "0.32.0", "cpu", "Qwen3MoeForCausalLM", "plain"),)
    assert trace.aspect("values") is None
    (packed,) = (each for each in known() if each.mode == "stock")
    assert not any(packed.concerns(running) for running in trace.aspect("engines") or ())
    assert packed.concerns(Running("vllm", "0.32.0", "cpu", "Qwen3MoeForCausalLM"))
