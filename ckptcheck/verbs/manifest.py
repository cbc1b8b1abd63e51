"""``ckptcheck manifest``: records every tensor of a checkpoint."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.text.observer import SILENT, Observer
from ckptcheck.verbs.options import FollowLinks, Jobs, Like, StoredOutput, Target
from ckptcheck.verbs.verb import verb

if TYPE_CHECKING:
    from ckptcheck.compare.manifest import Manifest
    from ckptcheck.runners.runner import Runner


@verb()
def manifest(
    target: Target,
    output: StoredOutput = None,
    *,
    like: Like = None,
    follow_links: FollowLinks = False,
    jobs: Jobs = None,
    runner: "Runner | None" = None,
    observer: Observer = SILENT,
) -> "Manifest":
    """Write dtype, shape and digest of every tensor to a file, and the identity of the weights.

    Returns the manifest, and writes it where `output` is given.
    """
    from ckptcheck.checkpoint.objects.address import is_object_address
    from ckptcheck.checkpoint.open import open_target
    from ckptcheck.checkpoint.scan_options import ScanOptions
    from ckptcheck.compare.manifest import build_manifest, write_manifest
    from ckptcheck.text.formatting import count
    from ckptcheck.text.model_files import refuse_model_file
    from ckptcheck.verbs.reports import check_runner

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
    if output is not None:
        write_manifest(built, stored or Path(output))
        observer.log(f"{count(len(built.tensors), 'tensor')} written to {output}")
    return built
