"""The keys that the cases of all rules share. Each factory beside this file adds those of its kind of evidence."""

from __future__ import annotations

import msgspec


class StrictTable(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A table of a rule's .toml. A key that its class does not list is a msgspec.ValidationError."""


class CaseTable(StrictTable, kw_only=True):
    """A case of any rule. One that a Python test plays has these keys alone."""

    title: str = ""
    """What the case shows."""
    expect: list[str] = []
    """The findings, each as ``file key: message``."""
    skip: str = ""
    """The reason, where the rule has to be skipped."""
    python: str = ""
    """``file.py::test``: the test that plays a case which no files can show, such as a race."""
