"""The families whose norms multiply by 1 + weight are those that transformers builds so."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from ckptcheck.values.detectors.norm_convention import CENTRED_AT_ZERO
from tests.conftest import needs

ONE_PLUS_WEIGHT = re.compile(r"1(\.0)? \+ self\.weight\b|self\.weight(\.float\(\))? \+ 1(\.0)?\b")


def test_every_family_of_transformers_is_known() -> None:
    needs("transformers")
    spec = importlib.util.find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    sources = Path(spec.origin).parent.glob("models/*/modeling_*.py")
    families = {path.parent.name for path in sources if ONE_PLUS_WEIGHT.search(path.read_text(encoding="utf-8"))}
    assert "gemma" in families
    assert {name for name in families if not CENTRED_AT_ZERO.search(name)} == set()
