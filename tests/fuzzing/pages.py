"""The door of saved reports: what `ckptcheck report` makes a page of, with findings, sections and pictures that anybody wrote."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import ckptcheck
from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.stored_pictures import picture_to_json
from ckptcheck.linter.stored_report import WITH_PICTURES
from ckptcheck.reporters.html.saved_reports import render_saved_reports
from tests.factories.pictures import PICTURES
from tests.fuzz import CHECKPOINTS
from tests.fuzzing.kept_files import change_form

LARGEST = 1 << 20
"""Bytes of an input that has to be read in the time that SECURITY.md states; repeated pictures make some of 10 MB."""


@cache
def _sound() -> dict[str, bytes]:
    report = ckptcheck.scan(CHECKPOINTS / "tiny-w4a16", consumers=["vllm"]).to_dict()
    pictures = [picture_to_json(picture) for picture in PICTURES]
    return {"report": json.dumps(report).encode(), "pictures": json.dumps(pictures).encode()}


def check_page(seed: int, folder: Path) -> None:
    """Change a saved report or its pictures, and make a page of it; what is refused with a sentence is well."""
    dice = random.Random(seed)
    sound = _sound()
    form: dict[str, Any] = {"schema": WITH_PICTURES, "report": json.loads(sound["report"]), "headline": "all is well"}
    form["pictures"] = dice.sample(json.loads(sound["pictures"]), 2)
    part = dice.choice(["pictures", "pictures", "report", ""])
    with suppress(ValueError, RecursionError):
        raw = change_form(json.dumps(form[part] if part else form).encode(), dice)
        if len(raw) > LARGEST:  # to parse it would take the memory that the page may take
            return
        changed = json.loads(raw)
        form = {**form, part: changed} if part else changed
    if len(text := json.dumps(form)) > LARGEST:
        return
    (folder / "r.json").write_text(text)
    with suppress(CkptcheckError):
        render_saved_reports([folder / "r.json"]).encode()
