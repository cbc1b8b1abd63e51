"""Whatever stands in a quantization config, every rule looks or skips; none crashes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.checkpoint.quantization.storage import group_by_storage
from ckptcheck.checkpoint.tensor import Tensor
from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules
from ckptcheck.values.value_pass import ValuePass
from tests.factories.checkpoint_cases import CHECKPOINTS

RULES = [rule for rule in rule_loader.load_rules() if "QNT" <= rule.code < "QNT017"]
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.sampled_from([0, -1, 1, 3, 4, 16, 128, 0.5]), st.text(max_size=4),
    st.sampled_from(["group", "channel", "block", "tensor", "pack-quantized", "int", "float", "local", "gptq", "NVFP4", "re:("]),
)  # fmt: skip
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    found = [at] if at else []
    if isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            found += paths(inner, (*at, key))
    return found


@pytest.mark.parametrize("base", ["tiny-w4a16", "tiny-fp8", "tiny-nvfp4", "tiny-gptq"])
def test_no_config_crashes_a_rule(base: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp(base) / "ckpt"
    shutil.copytree(CHECKPOINTS / base, folder)
    original = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    places = paths(original["quantization_config"])

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        changes=st.lists(st.tuples(st.sampled_from(places), JSON), min_size=1, max_size=3), method=st.none() | SCALARS
    )
    def mutate(changes: list[tuple[tuple[Any, ...], Any]], method: Any) -> None:
        config = json.loads(json.dumps(original))
        for path, new in changes:
            part = config["quantization_config"]
            try:
                for key in path[:-1]:
                    part = part[key]
                part[path[-1]] = new
            except (KeyError, IndexError, TypeError):
                continue  # an earlier change took that place away
        if method is not None:
            config["quantization_config"]["quant_method"] = method
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        report = run_rules(open_checkpoint(str(folder), value_reader=ValuePass()), RULES)
        assert report.crashed == ()

    mutate()


@pytest.mark.parametrize("bits", [0, -1, -3, 10**30, 65])
@pytest.mark.parametrize(("base", "place"), [("tiny-w4a16", "weights"), ("tiny-gptq", "")])
def test_no_number_of_bits_crashes_a_rule(base: str, place: str, bits: int, tmp_path: Path) -> None:
    shutil.copytree(CHECKPOINTS / base, tmp_path / "ckpt")
    config = json.loads((tmp_path / "ckpt" / "config.json").read_text(encoding="utf-8"))
    block = config["quantization_config"]
    if place:
        block["config_groups"]["group_0"][place] |= {"num_bits": bits, "group_size": bits}
    else:
        block |= {"bits": bits, "group_size": bits}
    (tmp_path / "ckpt" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    report = run_rules(open_checkpoint(str(tmp_path / "ckpt"), value_reader=ValuePass()), RULES)
    assert report.crashed == ()
    assert len(report.findings) < 10


def test_one_pass_whatever_the_names() -> None:
    names = [
        "weight",
        ".weight",
        "a..weight",
        "x.weight.absmax",
        "absmax",
        "experts.down_proj_scale",
        "w1",
        "é.qweight",
    ]
    ways = group_by_storage({name: Tensor("U8", (number,), (0, 0)) for number, name in enumerate(names)})
    found = {way.name(module, role) for way, modules in ways.items() for module in modules for role in way.parts}
    assert found == {
        "weight",
        "a..weight",
        "x.weight.absmax",
        "weight.absmax",
        "experts.down_proj_scale",
        "w1",
        "é.qweight",
    }


def test_modules_are_grouped_in_any_order_of_their_tensors() -> None:
    scale, weight = Tensor("F32", (1, 1), (0, 0)), Tensor("F8_E4M3", (8, 8), (0, 0))
    tensors = {"a.weight": weight, "b.weight_scale_inv": scale, "b.weight": weight, "a.weight_scale_inv": scale}
    ways = group_by_storage(tensors)
    assert list(ways.values()) == [["a", "b"]]
    assert group_by_storage(dict(sorted(tensors.items(), reverse=True))).popitem()[1] == ["b", "a"]
