"""Adapters that people trained and published: a scan finds no error in any, whatever tool of whatever year wrote it."""

from __future__ import annotations

from pathlib import Path

import pytest

import ckptcheck
from tests.factories.released_adapters import ReleasedAdapter, list_adapters, write_adapter

WARNINGS: dict[str, set[str]] = {}
"""Source → codes of warnings that are right, each examined."""


@pytest.mark.parametrize("adapter", list_adapters(), ids=lambda adapter: adapter.source)
def test_a_released_adapter_has_no_error(adapter: ReleasedAdapter, tmp_path: Path) -> None:
    report = ckptcheck.scan(write_adapter(adapter, tmp_path / "adapter"), headers_only=True)
    assert not report.crashed
    told = [f"{one.code} {one.severity} {one.message}" for one in report.findings if one.severity != "info"]
    assert {text.split()[0] for text in told} == WARNINGS.get(adapter.source, set()), told
    assert not any(" error " in text for text in told)
    if adapter.config["peft_type"] == "LORA":
        unserved = {one.code for one in report.findings if "vLLM 0.32 refuses to serve" in one.message}
        assert {"ADP003", "ADP004", "ADP007", "ADP008"} <= {*report.passed, *unserved} | WARNINGS.get(
            adapter.source, set()
        )


def test_there_are_many() -> None:
    adapters = [adapter for adapter in list_adapters() if adapter.config["peft_type"] == "LORA"]
    assert len(adapters) >= 60
    assert len({adapter.source.partition("@")[0] for adapter in adapters}) >= 40
    assert sum(bool(adapter.tensors) for adapter in adapters) >= 4
