"""The report as JSON with what its pictures need, for ``ckptcheck report``: a list of objects with a report and its pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ckptcheck.linter.report import Report
from ckptcheck.linter.rule import Rule
from ckptcheck.linter.stored_pictures import picture_to_json
from ckptcheck.linter.stored_report import WITH_PICTURES
from ckptcheck.reporters.json import escape_deceptive


def render(reports: Sequence[Report], rules: Sequence[Rule]) -> str:
    """Write the reports, each with its pictures (`linter/stored_pictures.py` has their form), one report a line."""
    lines = (
        json.dumps(
            {
                "schema": WITH_PICTURES,
                "report": report.to_dict(),
                **({"headline": report.headline} if report.headline else {}),
                "pictures": [picture_to_json(picture) for picture in report.pictures],
            },
            ensure_ascii=False,
            separators=(",", ":"),
        )
        for report in reports
    )
    text = "[\n" + ",\n".join(lines) + "\n]\n"
    return escape_deceptive(text)
