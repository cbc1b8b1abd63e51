"""``ckptcheck manifest``: records every tensor of a checkpoint."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ckptcheck.text.observer import SILENT, Observer
from ckptcheck.verbs.options import FollowLinks, Jobs, Like, Option, Paths, StoredOutput, Target
from ckptcheck.verbs.parameter import Given, several
from ckptcheck.verbs.verb import verb

if TYPE_CHECKING:
    from ckptcheck.compare.manifest import Manifest
    from ckptcheck.runners.runner import Runner

ORIGIN = "What the weights were made from"


def reject_unused(given: Given) -> None:
    """Reject a version without a tool."""
    if given["tool"] is None:
        given.reject(["tool_version"], "without --tool")


@verb(reject_unused)
def manifest(
    target: Target,
    output: StoredOutput = None,
    *,
    like: Like = None,
    made_from: Annotated[
        Paths,
        Option(
            "A checkpoint that the weights were made from, or its manifest; repeatable.", metavar="INPUT", panel=ORIGIN
        ),
    ] = (),
    tool: Annotated[
        str | None, Option("The tool that made them.", metavar="NAME", panel=ORIGIN, needs=("made_from",))
    ] = None,
    tool_version: Annotated[
        str | None, Option("The version of the tool.", metavar="VERSION", panel=ORIGIN, needs=("made_from",))
    ] = None,
    command: Annotated[
        str | None, Option("The command that made them.", metavar="COMMAND", panel=ORIGIN, needs=("made_from",))
    ] = None,
    follow_links: FollowLinks = False,
    jobs: Jobs = None,
    runner: "Runner | None" = None,
    observer: Observer = SILENT,
) -> "Manifest":
    """Write dtype, shape and digest (xxh3-128) of every tensor to a file, and the identity of the weights.

    Returns the manifest, and writes it where `output` is given.
    """
    from ckptcheck.checkpoint.objects.address import is_object_address
    from ckptcheck.checkpoint.open import open_target
    from ckptcheck.checkpoint.scan_options import ScanOptions
    from ckptcheck.compare.manifest import build_manifest, write_manifest
    from ckptcheck.text.formatting import count
    from ckptcheck.text.model_files import refuse_model_file
    from ckptcheck.verbs.reports import check_runner
    from ckptcheck.verbs.signed_weights import read_inputs

    name, runner = os.fspath(target), check_runner(runner)
    written = os.fspath(output) if output is not None else ""
    stored = None
    if is_object_address(written):
        from ckptcheck.checkpoint.objects.folder import StoredOutput as Store

        stored = Store(written)
    elif output is not None:
        refuse_model_file(Path(output))
    options = ScanOptions(follow_links=follow_links)
    reference = open_target(os.fspath(like), jobs=jobs, options=options) if like is not None else None
    with observer.progress(name) as progress:
        built = build_manifest(
            open_target(name, runner=runner, jobs=jobs, options=options),
            reference,
            jobs=jobs,
            runner=runner,
            progress=progress,
        )
        if made_from:
            from ckptcheck.compare.lineage import state_origin

            inputs = read_inputs(several(made_from), options, jobs=jobs, runner=runner)
            built.made_from = state_origin(
                built, inputs, tool=tool or "", version=tool_version or "", command=command or ""
            )
    if output is not None:
        write_manifest(built, stored or Path(output))
        observer.log(f"{count(len(built.tensors), 'tensor')} written to {output}")
    return built
