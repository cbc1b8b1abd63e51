"""``ckptcheck identity`` prints one name for a set of weights, whatever their layout."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Literal

import typer

from ckptcheck import api
from ckptcheck.cli.options import TARGET_FORMS, FollowLinks, Like, TensorJobs

IdentityFormat = Literal["text", "json"]
"""Formats of an identity."""


def identity(
    targets: Annotated[list[str], typer.Argument(metavar="TARGET", help=TARGET_FORMS)],
    like: Like = None,
    follow_links: FollowLinks = False,
    format: Annotated[
        IdentityFormat, typer.Option(help="text: a line for each target; json: every tensor with its digest.")
    ] = "text",
    jobs: TensorJobs = None,
) -> None:
    """Print one name for a set of weights, the same for every layout: shards, a Megatron run on any grid, fused projections.

    Several targets are printed one below the other. Exit codes: 0 printed, 2 a tensor is missing or cannot be read.
    """
    from ckptcheck.cli import output as out
    from ckptcheck.reporters.json import escape_deceptive
    from ckptcheck.reporters.printable import printable
    from ckptcheck.reporters.runner_commands import break_commands
    from ckptcheck.text.formatting import count, format_bytes

    found = [
        api.identity(target, like=like, follow_links=follow_links, jobs=jobs, observer=out.TERMINAL)
        for target in targets
    ]
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
