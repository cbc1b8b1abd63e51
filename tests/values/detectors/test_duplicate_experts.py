"""Experts that repeat other experts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.factories.value_cases import find_messages


def test_a_copy_of_an_expert_that_is_not_the_first(tmp_path: Path) -> None:
    """E4M3 numbers of which all experts use the largest, as quantized ones do."""
    random = np.random.default_rng(0)
    data, header = b"", {}
    for expert in range(4):
        value = random.integers(0, 256, (16, 16), dtype=np.uint8)
        value[value & 0x7F == 0x7F] = 0x7E
        value[0, 3] = 0x7E
        name = f"model.layers.1.mlp.experts.{expert}.up_proj.weight"
        raw = data[-256:] if expert == 3 else value.tobytes()
        header[name] = {"dtype": "F8_E4M3", "shape": [16, 16], "data_offsets": [len(data), len(data) + 256]}
        data += raw
    text = json.dumps(header).encode().ljust(1024)
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    assert find_messages(tmp_path, "VAL009") == ["in layer 1 expert 3 repeats expert 2, byte for byte"]
