"""The report as JSON, the documented form (``report.schema.json``). Several targets: the keys of one for all, and ``reports``."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from ckptcheck.linter.report import Report, reports_to_dict
from ckptcheck.linter.rule import Rule
from ckptcheck.reporters.runner_commands import HASHES

# Lone surrogates cannot be encoded in UTF-8; the others are legal in JSON, but a terminal obeys DEL and C1 controls,
# programs that read line by line break a line at U+2028, marks of direction show a name from its end, and the runner of
# a CI takes ``##[`` for a command wherever it stands in a line.
ESCAPED = re.compile(r"[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]|" + HASHES.pattern)


def render(reports: Sequence[Report], rules: Sequence[Rule]) -> str:
    """Write the reports as JSON, readable as it stands: it escapes only characters that cannot be shown or encoded."""
    text = json.dumps(reports_to_dict(reports), indent=2, ensure_ascii=False)
    return escape_deceptive(text) + "\n"


def escape_deceptive(text: str) -> str:
    """Write what could deceive a reader, a terminal or a CI as escapes; the JSON means the same."""
    return ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
