"""ckptcheck: checks model checkpoints and weight syncs.

A program uses the functions of `ckptcheck.api`, which this package exports::

    import ckptcheck

    ckptcheck.scan("./my-model").raise_for_findings()

A rule needs two names::

    from ckptcheck import Problem, rule

Every name is imported when it is first used, so that ``import ckptcheck`` costs nothing.
"""

from __future__ import annotations

import importlib

# what type checkers take for true: importing typing takes longer than the rest of this module
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ckptcheck.api import (
        attach,
        calibrate_floor,
        conformance,
        convert_rollouts,
        critic,
        diff,
        follow_history,
        gate,
        history,
        identity,
        judge,
        judge_all,
        localize,
        lora,
        manifest,
        parity_matrix,
        parity_probe,
        parity_why,
        preflight,
        preview_repairs,
        record_rollouts,
        refit,
        scan,
        scan_all,
        score_rollouts,
        series,
        sign,
        verify,
        write_page,
    )
    from ckptcheck.errors import CkptcheckError
    from ckptcheck.linter.report import FindingsError, Report, Reports, Section
    from ckptcheck.linter.rule import Finding, Problem, Skip, rule
    from ckptcheck.text.observer import Observer

__version__ = "0.1.0"
__all__ = [
    "CkptcheckError",
    "Finding",
    "FindingsError",
    "Local",
    "Observer",
    "Parts",
    "Problem",
    "Ray",
    "Report",
    "Reports",
    "Section",
    "Skip",
    "__version__",
    "attach",
    "calibrate_floor",
    "conformance",
    "convert_rollouts",
    "critic",
    "diff",
    "follow_history",
    "gate",
    "history",
    "identity",
    "join",
    "judge",
    "judge_all",
    "localize",
    "lora",
    "manifest",
    "parity_matrix",
    "parity_probe",
    "parity_why",
    "preflight",
    "preview_repairs",
    "record_rollouts",
    "refit",
    "rule",
    "scan",
    "scan_all",
    "score_rollouts",
    "series",
    "sign",
    "verify",
    "write_page",
    "write_part",
]

_MODULES = {
    "CkptcheckError": "ckptcheck.errors",
    "FindingsError": "ckptcheck.linter.report",
    "Finding": "ckptcheck.linter.rule",
    "Problem": "ckptcheck.linter.rule",
    "Skip": "ckptcheck.linter.rule",
    "rule": "ckptcheck.linter.rule",
    "Report": "ckptcheck.linter.report",
    "Reports": "ckptcheck.linter.report",
    "Section": "ckptcheck.linter.report",
    "Observer": "ckptcheck.text.observer",
    "Local": "ckptcheck.runners.runner",
    "Parts": "ckptcheck.runners.parts",
    "Ray": "ckptcheck.runners.ray_cluster",
}
"""Exported name → its module; the others are functions of ckptcheck.api."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'ckptcheck' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES.get(name, "ckptcheck.api")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
