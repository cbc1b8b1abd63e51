"""Rejects options without effect on a trial: timeouts of phases that it lacks, and GPUs of a trainer on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

from ckptcheck.errors import UsageError
from ckptcheck.text.formatting import join_words
from ckptcheck.verbs.parameter import Given, several


def reject_checks(given: Given) -> None:
    """Reject GPUs of a trainer that computes on the CPU. Raises UsageError also if no check is left."""
    if not (given["check_weights"] or given["check_logprobs"]):
        raise UsageError("with both checks turned off there is nothing to check")
    if given["device"] == "cpu":
        given.reject(["trainer_gpus"], "with --set device=cpu: the trainer is kept off GPUs")


def reject_phases(given: Given, unused: Sequence[str], where: str) -> None:
    """Raise UsageError for timeouts of these phases, which are written ``PHASE=SECONDS``. where: why they have no effect."""
    phases = {str(text).rpartition("=")[0] for text in several(given["timeout"])}
    if flags := [f"--set timeout={phase}=" for phase in unused if phase in phases]:
        raise UsageError(f"{join_words(flags)} {'has' if len(flags) == 1 else 'have'} no effect {where}")
