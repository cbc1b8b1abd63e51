"""The reference of the API has every name and every argument; tests/test_pages.py runs the examples of docs/reports.md."""

from __future__ import annotations

import ckptcheck
from ckptcheck.cli.verb_command import load_verb
from ckptcheck.verbs import VERBS
from tests.test_site import load_builder


def test_the_reference_has_every_name_and_every_argument() -> None:
    reference = load_builder().describe_api()
    for name in ckptcheck.__all__:
        assert name == "__version__" or f"\n## {name}\n" in reference
    for words in VERBS:
        verb = load_verb(words)
        for name, parameter in verb.parameters.items() if f"`ckptcheck {words}`" in reference else ():
            assert parameter.declared is None or f"`{name}` |" in reference or f"`*{name}` |" in reference
    assert "| `atol` | a number from 0 | 0.0 | Absolute tolerance. |" in reference
