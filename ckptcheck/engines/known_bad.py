"""Versions of engines that are known to serve wrong weights after an update: data, with the reports they come from."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

DATA = Path(__file__).with_name("known_bad.toml")


@dataclass(frozen=True)
class Running:
    """An engine that runs, as far as it is known; "" for what it does not say. mode: plain or stock, of an engine of ours."""

    engine: str
    version: str
    device: str = ""
    architecture: str = ""
    mode: str = "stock"
    where: str = ""


class Bad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One report: which versions, under which conditions, what happens, where it was seen, and what to do instead."""

    engine: str
    what: str
    seen: str
    instead: str
    since: str = ""
    until: str = ""
    device: str = ""
    architecture: str = ""
    mode: str = ""

    def concerns(self, running: Running) -> bool:
        """Whether it is about this engine. A condition on what the engine does not say is not met."""
        return (
            running.engine == self.engine
            and self._spans(running.version)
            and self.device in ("", running.device)
            and self.mode in ("", running.mode)
            and (not self.architecture or re.search(self.architecture, running.architecture) is not None)
        )

    def _spans(self, version: str) -> bool:
        numbers = _numbers(version)
        if not numbers:
            return False
        first, last = _numbers(self.since), _numbers(self.until)
        return (not first or numbers >= first) and (not last or numbers[: len(last)] <= last)


@functools.cache
def known() -> tuple[Bad, ...]:
    """Read the reports that come with ckptcheck."""
    return tuple(msgspec.toml.decode(DATA.read_bytes(), type=dict[str, list[Bad]])["bad"])


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: a development version counts as the one before which it comes."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
