"""The Python API: one function a verb, from evidence over rules to a report.

The command line calls these functions, so a program, a notebook and a terminal get the same `Report` for the same input::

    import ckptcheck

    report = ckptcheck.scan("./my-model")
    report.raise_for_findings()

Keyword arguments have the names and the defaults of the command's options. Where an argument takes several values, a single string,
path or number stands for a list of one. A function raises `CkptcheckError` where the command exits with 2 and has nothing else to
report: an unreadable target, a number out of its range, an option that cannot be met. A report whose verdict is ``incomplete`` is
returned; `Report.raise_for_findings` raises for it. An observer receives messages and progress; without one nothing is printed.

Everything is imported inside the functions: importing this module costs nothing, and ``scan`` never loads torch.
"""

from __future__ import annotations

from ckptcheck.api.arguments import (
    AdapterUpdate,
    Bridge,
    Device,
    Dtype,
    EngineMode,
    LogprobKind,
    PartVerb,
    Quantizer,
    RolloutFormat,
    Scheme,
    StrPath,
    TokenSampler,
    TrainerName,
)
from ckptcheck.api.checkpoints import preview_repairs, scan, scan_all
from ckptcheck.api.comparisons import critic, diff, identity, manifest, series, verify
from ckptcheck.api.gaps import localize, parity_matrix, parity_probe, parity_why
from ckptcheck.api.jobs import gate, preflight
from ckptcheck.api.judging import judge, judge_all
from ckptcheck.api.machines import join, write_part
from ckptcheck.api.recording import calibrate_floor, convert_rollouts, record_rollouts, score_rollouts
from ckptcheck.api.report import write_page
from ckptcheck.api.signing import sign
from ckptcheck.api.syncs import attach, conformance, follow_history, history, lora, refit

__all__ = [
    "AdapterUpdate",
    "Bridge",
    "Device",
    "Dtype",
    "EngineMode",
    "LogprobKind",
    "PartVerb",
    "Quantizer",
    "RolloutFormat",
    "Scheme",
    "StrPath",
    "TokenSampler",
    "TrainerName",
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
    "scan",
    "scan_all",
    "score_rollouts",
    "series",
    "sign",
    "verify",
    "write_page",
    "write_part",
]
