"""Grades what a report says of a fault against what was expected of it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.fault_matrix.fault import Fault
from tests.fault_matrix.session import Outcome

CAUSES: Mapping[str, str] = {
    "rounding": r"rounded to|quantized to|cut to bf16",
    "swap": r"gate and up are swapped|Q, K and V are in the order|layers are permuted|experts are permuted|is another|permuted",
    "tensor-parallel order": r"tensor-parallel ranks",
    "factor": r"multiplied by",
    "transposition": r"\btransposed\b",
    "shift": r"rows are (rotated|moved)|shifted",
    "zeros": r"(is|are) (all )?zero",
    "bit flip": r"one bit differs",
    "stale": r"values of an earlier step|version of step|changed none|left \d+ matri",
    "byte order": r"reverse order",
    "norm offset": r"1 is missing|1 was added",
    "rope order": r"rope's (halves|interleaved)",
}
"""Kind of cause → how messages name it. A message that names another kind than the one expected names a wrong cause."""
PARTY = {
    "exporter": r"the trainer exports|the trainer saved|\bexport(er|s|ed)\b|what the trainer (saved|exports)",
    "trainer": r"\bstep \d+ (changed|left)|the trainer's|ranks? hold|trainer itself|the trainer computes|loader or exporter",
    "transport": r"bucket|transport|on (its|the) way|under way|never arrived|with other bytes than were sent|was not sent"
    r"|none of it was sent",
    "loader": r"loader|loaded|wrote into|stopped there",
    "engine state": r"nothing was sent|slept|prefix cache|version|does not have|after the sync|engine's own|finish reason|flushed"
    r"|something else|bytes more|grew",
    "compute": r"computes with something else|first in |in the logits|put out|computes otherwise"
    r"|the engine \(\w+\) computes \S+ otherwise",
}
"""Party → how messages name it."""


@dataclass(frozen=True)
class Grade:
    """How a trial did on a fault."""

    fault: str
    engine: str
    detected: str
    """yes, warning, no, other: only rules that were not expected; or failed: the trial did not finish."""
    cause: str
    """right, vague or wrong; "" where nothing was detected."""
    tensor: str
    """yes, no, or – where there is none to name; likewise the part, the rank and the party."""
    part: str
    rank: str
    party: str
    codes: tuple[str, ...]
    seconds: float
    messages: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, object]:
        """Return it as JSON."""
        return asdict(self)


def grade(fault: Fault, engine: str, outcome: Outcome, usual: Collection[str]) -> Grade:
    """Grade a trial. usual: the rules that speak in a sound trial of this engine too."""
    findings = [finding for finding in outcome.report.findings if finding.code not in set(usual) - set(fault.codes)]
    findings = [finding for finding in findings if finding.severity != "info"]
    expected = [finding for finding in findings if finding.code in fault.codes]
    loud = [finding for finding in expected if finding.severity == "error"]
    failed = "; ".join(f"{phase}: {why}" for phase, why in outcome.trace.failed_phases.items())
    detected = "yes" if loud else "warning" if expected else "other" if findings else "failed" if failed else "no"
    messages = tuple(f"{finding.code} {finding.message}" for finding in findings)
    text = "\n".join(messages)

    is_seen = bool(findings)
    return Grade(
        str(fault),
        engine,
        detected,
        _grade_cause(fault, text) if is_seen else "",
        _names(fault.tensor, text) if is_seen else "",
        _names(fault.part, text) if is_seen else "",
        _names(fault.rank, text) if is_seen else "",
        _names(PARTY.get(fault.party, ""), text) if is_seen else "",
        tuple(sorted({finding.code for finding in findings})),
        round(outcome.seconds, 1),
        messages + ((f"failed: {failed}",) if failed else ()),
    )


def regrade(old: Mapping[str, Any], fault: Fault) -> dict[str, Any]:
    """Grade what a report said once more: the words for what is expected may have been widened."""
    text = "\n".join(message for message in old["messages"] if not message.startswith("failed: "))
    places = {"tensor": fault.tensor, "part": fault.part, "rank": fault.rank, "party": PARTY.get(fault.party, "")}
    if not text:
        return dict(old)
    return {
        **old,
        "cause": _grade_cause(fault, text),
        **{key: _names(pattern, text) for key, pattern in places.items()},
    }


def _names(pattern: str, text: str) -> str:
    return "–" if not pattern else "yes" if re.search(pattern, text) else "no"


def _grade_cause(fault: Fault, text: str) -> str:
    if not fault.cause or re.search(fault.cause, text, re.DOTALL):
        return "right"
    return "wrong" if any(re.search(pattern, text) for pattern in CAUSES.values()) else "vague"
