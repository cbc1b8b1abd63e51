"""Tabulates how each consumer builds a quantized checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptcheck.consumers.consumer import Consumer
from ckptcheck.consumers.mismatches import (
    evaluate_checkpoint,
    find_mismatches,
    find_refusals,
    find_sync_mismatches,
    find_uncertain_mismatches,
)
from ckptcheck.text.formatting import count

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint


def tabulate_consumers(ckpt: Checkpoint) -> list[dict[str, str | int | None]]:
    """Return a row for each chosen consumer: consumer, version, files, quantized, plain, agrees.

    files: number of weight files that it loads, None for a trainer that loads another checkpoint. quantized, plain: number
    of modules that it builds so. agrees: "yes", or how many modules it refuses or builds in another way than stored.
    """
    rows: list[dict[str, str | int | None]] = []
    for name, evaluation in evaluate_checkpoint(ckpt).items():
        consumer = evaluation.consumer
        quantized = [decision.quantized for _, decision in evaluation.decisions.values()]
        if evaluation.error is not None:
            agrees = f"refuses it: {evaluation.error}"
        elif evaluation.reason is not None:
            agrees = f"unknown: {evaluation.reason}"
        elif consumer.sends_weights:
            agrees = _compare_with_engines(ckpt, consumer)
        elif not any(quantized):
            agrees = "builds nothing quantized: it does not know the method"
        else:
            agrees = _compare_with_storage(ckpt, consumer)
        if evaluation.is_guess and evaluation.decisions:
            agrees += " (a guess by the usual names: this architecture was never built with it)"
        rows.append({
            "consumer": name, "version": consumer.version,
            "files": None if consumer.weight_files is None else len(consumer.weight_files(ckpt)),
            "quantized": quantized.count(True), "plain": quantized.count(False), "agrees": agrees,
        })  # fmt: skip
    return rows


def explain_unknown(ckpt: Checkpoint) -> str | None:
    """Return why a chosen consumer has no answer in the table; None if each has one, or nothing is quantized."""
    evaluations = evaluate_checkpoint(ckpt)
    if not evaluations and ckpt.quantization is not None:
        return "--consumers: the config names no quantization method"
    unknown = [f"{name}: {each.reason}" for name, each in evaluations.items() if each.reason and not each.error]
    return f"--consumers could not tell about {'; '.join(unknown)}" if unknown else None


def _compare_with_storage(ckpt: Checkpoint, consumer: Consumer) -> str:
    """Return "yes", or how many modules the consumer refuses or builds in another way than stored."""
    refused = sum(len(refusal.modules) for refusal in find_refusals(ckpt) if refusal.consumer is consumer)
    plain, quantized = (
        sum(mismatch.consumer is consumer for mismatch in find_mismatches(ckpt, quantized=stored))
        for stored in (True, False)
    )
    unknown = sum(mismatch.consumer is consumer for mismatch in find_uncertain_mismatches(ckpt))
    parts = [
        f"stops at {count(refused, 'module')}" if refused else "",
        f"builds {count(plain, 'quantized module')} plain" if plain else "",
        f"builds {count(quantized, 'plain module')} quantized" if quantized else "",
        f"unknown for {count(unknown, 'module')}" if unknown else "",
    ]
    return ", ".join(part for part in parts if part) or "yes"


def _compare_with_engines(ckpt: Checkpoint, trainer: Consumer) -> str:
    """Return "yes", or how many modules the trainer packs in another way than an engine builds them."""
    modules = {sent.module for sent, _ in find_sync_mismatches(ckpt) if sent.consumer is trainer}
    return f"packs {count(len(modules), 'module')} in another form than an engine builds" if modules else "yes"
