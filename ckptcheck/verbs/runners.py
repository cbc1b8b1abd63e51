"""Prepares the runner that computes passes over all bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckptcheck.runners.runner import Runner


def check_runner(runner: Runner | None) -> Runner | None:
    """Return the runner, None for the default one. Raises CkptcheckError if it cannot run anything."""
    from ckptcheck.runners.parts import Parts
    from ckptcheck.runners.runner import Local

    if isinstance(runner, Parts):
        from ckptcheck.checkpoint.objects.part_folder import open_part_folder

        runner = Parts(open_part_folder(runner.folder))
        runner.read_command()
    return None if type(runner) is Local else runner
