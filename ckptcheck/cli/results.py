"""Writes the results of verbs that return no report."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from ckptcheck.errors import UsageError


def write_result(result: Any, values: Mapping[str, Any]) -> None:
    """Write the result of a verb. values: the values on the command line."""
    if isinstance(result, str):
        sys.stdout.write(result)
    elif hasattr(result, "section"):
        from ckptcheck.reporters import tables
        from ckptcheck.reporters.line_printer import LinePrinter

        tables.write(LinePrinter(sys.stdout), result.section())
    elif "fail_on" in values and values["output"] is None and hasattr(result, "tensors"):
        raise UsageError("the parts are of a manifest, which needs a file", hint="name it with -o")
    elif isinstance(result, list) and result and hasattr(result[0], "identity"):
        _write_identities(result, values["format"])


def _write_identities(found: list[Any], format: str) -> None:
    from ckptcheck.reporters.json import escape_deceptive
    from ckptcheck.reporters.printable import printable
    from ckptcheck.reporters.runner_commands import break_commands
    from ckptcheck.text.formatting import count, format_bytes

    if format == "json":
        forms = [each.to_dict() for each in found]
        sys.stdout.write(escape_deceptive(json.dumps(forms[0] if len(forms) == 1 else forms, indent=2)) + "\n")
        return
    for each in found:
        tensors = count(len(each.tensors), "tensor")
        line = (
            f"{each.identity}  {printable(each.target)}  ({tensors}, {format_bytes(each.nbytes)}, {each.names} names)"
        )
        sys.stdout.write(break_commands(line) + "\n")
