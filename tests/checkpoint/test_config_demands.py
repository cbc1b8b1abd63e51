"""Expressions that a config class refuses: what is true of a config, and what is not known stays quiet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ckptcheck.checkpoint.config_demands import UnknownValueError, is_refused, list_settings
from ckptcheck.checkpoint.resolved_config import resolve_config
from ckptcheck.checkpoint.rope_refusals import iter_wrong_rope


def read(settings: dict[str, Any]) -> Callable[[str], Any]:
    def value_of(path: str) -> Any:
        if path not in settings:
            raise UnknownValueError
        return settings[path]

    return value_of


@pytest.mark.parametrize(
    ("expression", "settings", "expected"),
    [
        ("a * b != c * d", {"a": 1, "b": 4, "c": 2, "d": 64}, True),
        ("a * b != c * d", {"a": 32, "b": 4, "c": 2, "d": 64}, False),
        ("a * b != c * d", {"a": "auto", "b": 4, "c": 2, "d": 64}, False),
        ("a * b != c", {"a": 1, "b": 4}, False),
        ("a % b != 0", {"a": 7, "b": 0}, False),
        ("a % b != 0", {"a": 7, "b": None}, False),
        ("a % b != 0", {"a": 7, "b": True}, False),
        ("a % b", {"a": 7, "b": 2}, True),
        ("len(a) != b", {"a": [1, 2], "b": 3}, True),
        ("len(a) != b", {"a": None, "b": 3}, False),
        ("a is None or a <= 0", {"a": None}, True),
        ("a is None or a <= 0", {"a": 3}, False),
        ("a not in ['x', 'y']", {"a": "z"}, True),
        ("a not in ['x', 'y']", {"a": ["z"]}, False),
        ("'x' not in a", {"a": ["y"]}, True),
        ("not 1 <= a <= b", {"a": 3, "b": 2}, True),
        ("not 1 <= a <= b", {"a": 2, "b": 2}, False),
        ("a != 'x'", {"a": 3}, False),
        ("a > min(b)", {"a": 3, "b": [2, 4]}, True),
        ("a > min(b)", {"a": 3, "b": ["2"]}, False),
        ("sum(a['b']) != c // 2", {"a": {"b": [1, 2]}, "c": 8}, True),
        ("sum(a['b']) != c // 2", {"a": {}, "c": 8}, False),
        ("a != b[-1]", {"a": 1, "b": [1, 2]}, True),
        ("a != b[-1]", {"a": 1, "b": []}, False),
        ("(a if b is None else b) % c != 0", {"a": 8, "b": 6, "c": 4}, True),
        ("text.a != audio.a", {"text.a": 1, "audio.a": 2}, True),
        ("-a < b", {"a": 1, "b": 0}, True),
        ("open(a)", {"a": "x"}, False),
        ("a ** b > 1", {"a": 9, "b": 9}, False),
    ],
)
def test_what_is_true_of_a_config(expression: str, settings: dict[str, Any], expected: bool) -> None:
    assert is_refused(expression, read(settings)) is expected


def test_which_settings_are_named() -> None:
    assert list_settings("len(a) != text.b and a is None") == ("a", "text.b")


class Lamp:
    """A class of configs with a check that its own default breaks, one that holds, and one that asks for more than settings."""

    def __init__(self, width: int = 6, heads: int = 4, kind: str = "x") -> None:
        self.width, self.heads, self.kind = width, heads, kind
        self.validate_heads()

    def validate_heads(self) -> None:
        head = self.width // 2
        if self.width % 3 != 0:
            raise ValueError
        if self.kind == "y":
            text = "is no half"
            if head != self.heads:
                raise ValueError(text)
        if repr(self) == "":
            raise ValueError

    def validate_never(self) -> None:
        if self.heads > 0:
            raise ValueError  # nobody calls it

    @staticmethod
    def _decode_special_floats(settings: dict[str, Any]) -> dict[str, Any]:
        return settings

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> Lamp:
        return cls(**settings)


Lamp.__module__ = "transformers.models.lamp"


def test_checks_of_a_class_become_expressions() -> None:
    from config_demands import learn_demands

    saved = {"width": 6, "heads": 4, "kind": "y"}
    assert learn_demands(Lamp, {"width": 6, "heads": 3, "kind": "y"}) == [
        "width % 3 != 0",
        "kind == 'y' and width // 2 != heads",
    ]
    assert learn_demands(Lamp, saved) == []  # the class refuses it as it is


def find_wrong_rope(part: Any) -> list[str]:
    kinds = {"full_attention": 0.5, "sliding_attention": part}
    rope = {
        kind: {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": own} for kind, own in kinds.items()
    }
    resolved = resolve_config({"model_type": "mimo_v2_flash", "layer_types": [*kinds], "rope_parameters": rope})
    assert resolved is not None
    return [path for path, _ in iter_wrong_rope(resolved.top)]


def test_a_class_that_rotates_a_part_of_each_head_needs_its_number_for_each_kind_of_layer() -> None:
    assert find_wrong_rope(None) == ["rope_parameters.sliding_attention.partial_rotary_factor"]
    assert find_wrong_rope(0.25) == []
