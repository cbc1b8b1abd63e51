"""What counts as equal."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Terms:
    """What counts as equal. cast: a dtype to which both sides are brought, "none", or "auto": the second side's own dtype
    where its config declares it, or where nothing is lost. rtol, atol: of the first side's numbers.
    """

    cast: str = "auto"
    rtol: float = 0.0
    atol: float = 0.0

    @property
    def sentence(self) -> str:
        """The terms, for the report."""
        return f"rtol {self.rtol:g}, atol {self.atol:g}" if self.rtol or self.atol else "bitwise"
