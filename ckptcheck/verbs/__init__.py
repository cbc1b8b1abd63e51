"""The verbs: one module each, with one function and one signature, from evidence over rules to a report.

The command line is made from these functions, so a program, a notebook and a terminal get the same `Report` for the same input::

    import ckptcheck

    report = ckptcheck.scan("./my-model")
    report.raise_for_findings()

Keyword arguments have the names and the defaults of the command's options. Where an argument takes several values, a single string,
path or number stands for a list of one. A verb raises `CkptcheckError` where the command exits with 2 and has nothing else to
report: an unreadable target, a number out of its range, an option that cannot be met; and TypeError for a value of a type that it
does not take. A report whose verdict is ``incomplete`` is returned; `Report.raise_for_findings` raises for it. An observer receives
messages and progress; without one nothing is printed.

Verbs import what they work with inside of the function: to import a verb costs nothing, and ``scan`` never loads torch.
"""

from __future__ import annotations

VERBS = {
    "scan": "scan:scan",
    "diff": "diff:diff",
    "manifest": "manifest:manifest",
    "verify": "verify:verify",
    "sign": "sign:sign",
    "identity": "identity:identity",
    "series": "series:series",
    "join": "join:join",
    "critic": "critic:critic",
    "refit": "refit:refit",
    "refit history": "history:history",
    "refit lora": "lora:lora",
    "attach": "attach:attach",
    "conformance": "conformance:conformance",
    "parity record": "record:record_rollouts",
    "parity score": "score:score_rollouts",
    "parity convert": "convert:convert_rollouts",
    "parity judge": "judge:judge",
    "parity calibrate": "calibrate:calibrate_floor",
    "parity matrix": "matrix:parity_matrix",
    "parity probe": "probe:parity_probe",
    "parity why": "why:parity_why",
    "parity localize": "localize:localize",
    "preflight": "preflight:preflight",
    "gate": "gate:gate",
    "rules": "rules:rules",
    "rule": "rules:rule",
    "report": "page:write_page",
    "doctor": "doctor:doctor",
    "engine install": "engine:install",
    "engine list": "engine:list_",
    "engine remove": "engine:remove",
}
"""Words of a command → module of this package and its function, in the order of the help."""
FURTHER = {
    "preview_repairs": "scan",
    "follow_history": "history",
    "write_part": "join",
}
"""Functions that a switch of the command line stands for (``--diff``, ``--watch``, ``--part``) → their module."""
