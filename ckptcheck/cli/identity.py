"""``ckptcheck identity`` prints one name for a set of weights, whatever their layout."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Literal

import typer

from ckptcheck import api
from ckptcheck.cli.options import FollowLinks, Like, Target, TensorJobs

IdentityFormat = Literal["text", "json"]
"""Formats of an identity."""


def identity(
    target: Target,
    like: Like = None,
    follow_links: FollowLinks = False,
    format: Annotated[
        IdentityFormat, typer.Option(help="text: one line; json: every tensor with its digest.")
    ] = "text",
    jobs: TensorJobs = None,
) -> None:
    """Print one name for a set of weights, the same for every layout: shards, a Megatron run on any grid, fused projections.

    Exit codes: 0 printed, 2 a tensor is missing or cannot be read.
    """
    from ckptcheck.cli import output as out
    from ckptcheck.text.formatting import count, format_bytes

    found = api.identity(target, like=like, follow_links=follow_links, jobs=jobs, observer=out.TERMINAL)
    if format == "json":
        text = json.dumps(found.to_dict(), indent=2) + "\n"
    else:
        tensors = count(len(found.tensors), "tensor")
        text = f"{found.identity}  {found.target}  ({tensors}, {format_bytes(found.nbytes)}, {found.names} names)\n"
    sys.stdout.write(text)
