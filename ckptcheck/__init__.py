"""ckptcheck: checks model checkpoints and weight syncs.

A program uses the verbs of `ckptcheck.verbs`, which this package exports::

    import ckptcheck

    ckptcheck.scan("./my-model").raise_for_findings()

A rule needs two names::

    from ckptcheck import Problem, rule

Every name is imported when it is first used, so that ``import ckptcheck`` costs nothing. This file itself imports nothing, for it
runs before `ckptcheck.__main__` can say from where to import.
"""

# what type checkers take for true: importing typing takes longer than the rest of this module
TYPE_CHECKING = False
if TYPE_CHECKING:
    from ckptcheck.errors import CkptcheckError
    from ckptcheck.linter.report import FindingsError, Report, Reports, Section
    from ckptcheck.linter.rule import Finding, Problem, Skip, rule
    from ckptcheck.text.observer import Observer
    from ckptcheck.verbs.attach import attach
    from ckptcheck.verbs.calibrate import calibrate_floor
    from ckptcheck.verbs.conformance import conformance
    from ckptcheck.verbs.convert import convert_rollouts
    from ckptcheck.verbs.critic import critic
    from ckptcheck.verbs.diff import diff
    from ckptcheck.verbs.gate import gate
    from ckptcheck.verbs.history import follow_history, history
    from ckptcheck.verbs.identity import identity
    from ckptcheck.verbs.join import join, write_part
    from ckptcheck.verbs.judge import judge
    from ckptcheck.verbs.localize import localize
    from ckptcheck.verbs.lora import lora
    from ckptcheck.verbs.manifest import manifest
    from ckptcheck.verbs.matrix import parity_matrix
    from ckptcheck.verbs.page import write_page
    from ckptcheck.verbs.preflight import preflight
    from ckptcheck.verbs.probe import parity_probe
    from ckptcheck.verbs.record import record_rollouts
    from ckptcheck.verbs.refit import refit
    from ckptcheck.verbs.scan import preview_repairs, scan
    from ckptcheck.verbs.score import score_rollouts
    from ckptcheck.verbs.series import series
    from ckptcheck.verbs.sign import sign
    from ckptcheck.verbs.verify import verify
    from ckptcheck.verbs.why import parity_why

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
"""Exported name → its module; the others are verbs."""


def __getattr__(name: str) -> object:
    import importlib

    if name not in __all__:
        raise AttributeError(f"module 'ckptcheck' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES.get(name) or _find_verb(name)), name)
    globals()[name] = value
    return value


def _find_verb(name: str) -> str:
    """Return the module of a verb."""
    import importlib

    verbs = importlib.import_module("ckptcheck.verbs")
    functions = {function: module for module, _, function in (place.partition(":") for place in verbs.VERBS.values())}
    return f"ckptcheck.verbs.{(functions | verbs.FURTHER)[name]}"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
