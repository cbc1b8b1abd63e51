"""Draws the tokens with the largest difference in the text around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptcheck.linter.pictures import State, TextCell, TextTable

if TYPE_CHECKING:
    from ckptcheck.rollouts.metrics.logprob_metrics import TokenGap
    from ckptcheck.rollouts.rollout_evidence import RolloutEvidence

BEFORE, AFTER = 24, 8
"""Tokens of the text that are shown before and after a token."""
LIKELIER, UNLIKELIER = "trainer: likelier", "trainer: less likely"


def draw_worst_tokens(evidence: RolloutEvidence, title: str) -> TextTable | None:
    """Draw the worst tokens, the worst one first; None if no token differs."""
    metrics = evidence.metrics_or_none
    worst = [gap for gap in metrics.worst if gap.abs_diff > 0] if metrics is not None else []
    if not worst:
        return None
    hint = "" if evidence.decode_text is not None else " --tokenizer DIR (a checkpoint) shows text in place of ids."
    return TextTable(
        title,
        f"The tokens with the largest differences; each stands between ▸ and ◂ in what surrounds it.{hint}",
        ("in its text", "|Δ|, nats", "engine", "trainer", "where"),
        tuple(_describe_token(evidence, gap) for gap in worst),
        (State(LIKELIER, "notice"), State(UNLIKELIER, "change")),
    )


def _describe_token(evidence: RolloutEvidence, gap: TokenGap) -> tuple[TextCell, ...]:
    decode = evidence.decode
    token = f"{gap.token} {decode(gap.token)}" if decode is not None else ""
    return (
        TextCell(_show_context(evidence, gap), note=token),
        TextCell(f"{gap.abs_diff:.3g}", LIKELIER if gap.trainer > gap.engine else UNLIKELIER),
        TextCell(f"{gap.engine:.4g}"),
        TextCell(f"{gap.trainer:.4g}"),
        TextCell(f"sequence {gap.sequence}, token {gap.position}"),
    )


def _show_context(evidence: RolloutEvidence, gap: TokenGap) -> str:
    """Return the text around a token, or ids without a tokenizer."""
    inside = evidence.rollouts.sequence(gap.sequence)
    tokens = evidence.rollouts.tokens[inside].tolist()
    first = max(gap.position - BEFORE, 0)
    parts = (
        tokens[first : gap.position],
        [gap.token],
        tokens[gap.position + 1 : gap.position + 1 + AFTER],
    )
    before, itself, after = (_decode(evidence, part) for part in parts)
    start = "…" if first else ""
    end = "…" if gap.position + 1 + AFTER < len(tokens) else ""
    return f"{start}{before}▸{itself}◂{after}{end}"


def _decode(evidence: RolloutEvidence, tokens: list[int]) -> str:
    if evidence.decode_text is not None:
        return evidence.decode_text([token for token in tokens if token >= 0])
    return " ".join(map(str, tokens))
