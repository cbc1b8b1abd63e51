"""The parts of the read model that rules do not show by themselves."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcheck.checkpoint.config import Config
from ckptcheck.checkpoint.index import MODEL_INDEX, parse_index
from ckptcheck.checkpoint.layout import INDEX, parse_layout
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.checkpoint.siblings import find_incomplete_layers, layer_kinds
from tests.paths import FIXTURES


def test_layout_reads_stacks_groups_and_the_rest() -> None:
    layout = parse_layout(
        [
            "model.embed_tokens.weight",
            "model.layers.0.mlp.experts.0.up.weight",
            "model.layers.0.mlp.experts.0.down.weight",
            "model.layers.0.mlp.experts.1.up.weight",
            "model.layers.0.mlp.experts.11.up.weight",
            "model.layers.10.mlp.experts.1.up.weight",
            "model.layers.1.norm.weight",
            "model.layers.01.norm.weight",
            "a.0.b.1.c.2.weight",
            "a.0.b.2.c.3.weight",
            "0.weight",
        ]
    )
    stack = layout.stacks["model.layers"]
    assert layout.candidates == [stack]
    assert members_of(stack.groups[0]) == {"mlp.experts": {"up.weight": {0, 1, 11}, "down.weight": {0}}}
    assert stack.groups[10] == {"mlp.experts": {"up.weight": {1: "model.layers.10.mlp.experts.1.up.weight"}}}
    assert stack.layers[0] == {"mlp.experts.{}.up.weight", "mlp.experts.{}.down.weight"}
    assert stack.layers[1] == {"norm.weight"}
    assert members_of(layout.stacks["a"].groups[0]) == {"b": {"c.{}.weight": {1, 2}}}
    assert layout.stacks[""].layers[0] == {"weight"}
    assert layout.outside == ("model.embed_tokens.weight", "model.layers.01.norm.weight")


def members_of(groups: dict[str, dict[str, dict[int, str]]]) -> dict[str, dict[str, set[int]]]:
    return {group: {part: set(members) for part, members in parts.items()} for group, parts in groups.items()}


@given(
    st.lists(st.lists(st.sampled_from(("a", "b", "0", "3", "03", "12", "{}")), min_size=1, max_size=7).map(".".join))
)
def test_templates_are_the_names_with_numbers_replaced(names: list[str]) -> None:
    expected: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        expected.setdefault(INDEX.sub("{}", name), []).append(name)
    found = parse_layout(dict.fromkeys(names)).names_by_template
    assert {template: sorted(alike) for template, alike in found.items()} == {
        template: sorted(alike) for template, alike in expected.items()
    }


def test_layout_does_not_depend_on_the_order_of_names() -> None:
    names = [
        f"m.layers.{i}.x.{j}.{part}"
        for i in range(3)
        for j in range(12)
        for part in ("a.weight", "b.0.weight", "b.1.bias")
    ]
    straight = parse_layout(names)
    for other in (sorted(names), sorted(names, reverse=True), sorted(names, key=lambda name: name[::-1])):
        assert parse_layout(other).stacks == straight.stacks


NAMES_OF_LAYER = ("norm.weight", *(f"x.{j}.{part}" for j in range(3) for part in ("a", "b.0.c")))


@given(
    st.lists(
        st.tuples(st.sampled_from(("m.layers.", "v.layers.")), st.lists(st.sampled_from(NAMES_OF_LAYER))), max_size=8
    )
)
def test_layers_that_repeat_are_parsed_like_others(layers: list[tuple[str, list[str]]]) -> None:
    names = {f"{prefix}{i // 2}.{ending}": None for i, (prefix, endings) in enumerate(layers) for ending in endings}
    names |= dict.fromkeys(("embed.weight", *(f"m.layers.7.{ending}" for ending in NAMES_OF_LAYER), "head.weight"))
    layout, backwards = parse_layout(names), parse_layout(sorted(names, key=lambda name: name[::-1]))
    assert layout.stacks == backwards.stacks
    expected: dict[str, set[int]] = {}
    for name in names:
        expected.setdefault(INDEX.sub("{}", name), set()).add(len(name) + 100 * name.count("1"))
    assert layout.group_by_template(names, lambda name: len(name) + 100 * name.count("1")) == expected
    assert list(layout.group_by_template(names, len)) == list(layout.names_by_template)


def test_names_with_a_zero_byte_are_not_taken_for_other_names() -> None:
    start = "layers.1."
    first = ["layers.0.x", f"layers.0.a\0{start}b", "layers.0.c", "layers.0.y"]
    second = ["layers.1.x", "layers.1.a", f"layers.1.b\0{start}c", "layers.1.y"]
    assert parse_layout([*first, *second]).stacks["layers"].layers[1] == {"x", "a", "b\0layers.{}.c", "y"}


def test_siblings() -> None:
    whole, torn = frozenset({"attn.q", "attn.k", "mlp.up"}), frozenset({"attn.q", "mlp.up"})
    without = frozenset({"attn.q", "attn.k"})
    assert find_incomplete_layers({0: whole, 1: whole, 2: whole}, {}) == {}
    assert find_incomplete_layers({0: whole, 1: torn, 2: whole}, {}) == {1: (frozenset({"attn.k"}), [0, 2])}
    assert find_incomplete_layers({0: whole, 1: torn}, {}) == {}, "nobody can tell which of two is right"
    assert find_incomplete_layers({0: whole, 1: without, 2: whole, 3: without, 4: whole}, {}) == {}, "a kind of its own"
    assert find_incomplete_layers({0: whole, 1: without, 2: whole}, {0: "a", 1: "b", 2: "a"}) == {}, (
        "its kind may lack a component"
    )
    assert set(find_incomplete_layers({0: whole, 1: torn, 2: whole}, {0: "a", 1: "b", 2: "a"})) == {1}
    many = {layer: frozenset({f"x.{layer}"}) for layer in range(3000)}
    assert find_incomplete_layers(many, {}) == {}


def test_kinds() -> None:
    assert layer_kinds({"layer_types": ["a", "b"], "sizes": [1, 2, 3], "name": "x", "dense": [0]}, 2) == {
        0: 'dense=true;layer_types="a"',
        1: 'dense=false;layer_types="b"',
    }


def test_parts_that_only_some_layers_have_by_a_pattern_are_no_loss() -> None:
    plain = frozenset({"self_attn.q_proj.weight", "mlp.up_proj.weight"})
    sparse = plain | {"self_attn.indexer.wq_b.weight", "self_attn.indexer.weights_proj.weight"}
    wide = plain | {"self_attn.o_proj.weight"}
    at_irregular_places = {layer: plain if layer in (0, 1, 5) else sparse for layer in range(12)}
    assert find_incomplete_layers(at_irregular_places, {}) == {}, "some layers have no indexer"
    lost = {layer: plain if layer in (3, 4, 9) else wide for layer in range(12)}
    assert set(find_incomplete_layers(lost, {})) == {3, 4, 9}
    every_fourth = {layer: plain if layer % 4 == 3 else wide for layer in range(12)}
    assert find_incomplete_layers(every_fourth, {}) == {}
    keys = plain | {"self_attn.k_proj.weight", "self_attn.v_proj.weight"}
    assert find_incomplete_layers({layer: keys if layer < 9 else plain for layer in range(12)}, {}) == {}, "shared"
    assert set(find_incomplete_layers({layer: wide if layer < 9 else plain for layer in range(12)}, {})) == {9, 10, 11}


def test_kinds_of_layers_are_read_from_longer_lists_strings_and_inner_lists() -> None:
    settings = {
        "compress_ratios": [0, 4, 0, 4, 0, 4, 0],
        "pattern": "M-M*-M",
        "linear": {"full": [1, 3]},
        "ids": [9] * 11,
    }
    assert layer_kinds(settings, 6)[3] == 'compress_ratios=4;linear.full=true;pattern="*"'
    assert layer_kinds({"sizes": [1, 2, 3, 4]}, 3)[0] == "", "of three layers nobody can tell"


def test_config_looks_into_the_language_models_part_first() -> None:
    config = Config(
        "config.json", {"hidden_size": 1, "text_config": {"hidden_size": 2}, "vocab_size": 3}, readable=True
    )
    assert config.integer("hidden_size") == 2
    assert config.key_path("hidden_size") == "text_config.hidden_size"
    assert config.integer("vocab_size") == 3
    assert config.key_path("vocab_size") == "vocab_size"
    assert Config("c", {"n": True, "m": "3", "k": 1.0}).integer("n", "m", "k") is None
    omni = Config("c", {"thinker_config": {"text_config": {"hidden_size": 5}}})
    assert (omni.integer("hidden_size"), omni.key_path("hidden_size")) == (5, "thinker_config.text_config.hidden_size")


@pytest.mark.parametrize(
    "raw",
    [
        b'{"metadata": {"total_size": 1}, "weight_map": {"a": "x", "a": "y"}}',
        b'{"weight_map": {"a": "x"}, "weight_map": {"b": "x"}, "metadata": {"total_size": 1}}',
        b'{"metadata": {"total_size": 1, "total_size": 2}, "weight_map": {"a": "x"}}',
        b'{"metadata": {"total_size": 1}, "weight_map": {"a": "x", "\\u0061": "y"}}',
    ],
)
def test_a_key_that_stands_twice_is_seen_in_an_index(raw: bytes) -> None:
    assert [defect.kind for defect in parse_index("i", raw).defects] == ["duplicate-key"]


def test_a_gap_in_any_stack_of_like_layers_is_seen() -> None:
    parts = ("norm.weight", "norm.bias", "attn.qkv.weight", "mlp.fc1.weight")
    tower = [f"visual.blocks.{layer}.{part}" for layer in range(8) for part in parts]
    assert parse_layout(tower).gaps == {}
    without = [name for name in tower if ".blocks.5." not in name]
    assert parse_layout(without).gaps == {"visual.blocks": {5}}
    few = [name for name in without if name.endswith(("norm.weight", "norm.bias"))]
    assert parse_layout(few).gaps == {}, "two tensors a layer may be a Sequential with activations between"
    unlike = [f"{name}_{name.split('.')[2]}" for name in without]
    assert parse_layout(unlike).gaps == {}, "layers that are not alike"
    late = [f"visual.blocks.{9_999}.{part}" for part in parts]
    assert parse_layout([*without, *late]).gaps == {}, "more missing than there are"


def test_an_index_that_agrees_with_the_headers_says_the_same_afterwards() -> None:
    """Its names are those of the headers then, so that a million names are not in memory twice."""
    folder = FIXTURES / "checkpoints" / "tiny-llama-sharded"
    written = json.loads((folder / MODEL_INDEX).read_bytes())["weight_map"]
    ckpt = open_checkpoint(str(folder))
    assert ckpt.index is not None
    assert ckpt.index.weight_map == written
    assert ckpt.index_agrees
    places = ckpt.index.weight_map
    assert type(places) is not dict
    assert (len(places), dict(places), ckpt.tensor_to_file) == (len(written), written, written)
    assert written == places
    assert not written.keys() - places.keys()
    assert places.get("another") is None
