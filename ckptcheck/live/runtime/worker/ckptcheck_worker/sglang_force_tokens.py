"""Forces SGLang to decode given tokens one by one, so that their logprobs come from the decode path and not from prefill."""

from __future__ import annotations

from typing import Any

from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor


class ForceTokens(CustomLogitProcessor):  # type: ignore[misc]
    """Forces ``custom_params["forced"]``, a list of tokens, and writes the logprob of each to the file ``custom_params["notes"]``.

    SGLang takes logprobs after this processor, when only the forced token is left, so it has to record them itself: one line a
    token.
    """

    def __call__(self, logits: Any, custom_param_list: list[dict[str, Any]] | None = None) -> Any:
        """Change the logits of a batch, one row a request."""
        from sglang.srt.runtime_context import get_parallel

        for row, params in zip(logits, custom_param_list or []):
            if getattr(params["__req__"], "inflight_middle_chunks", 0) > 0:
                continue  # a chunk of the prompt: SGLang samples nothing
            # count here: with overlap scheduling the previous token is not in the request's output yet
            position = params.get("place", 0)
            params["place"] = position + 1
            if position >= len(params["forced"]):
                continue
            token = int(params["forced"][position])
            logprob = float(row.float().log_softmax(-1)[token])
            row.fill_(float("-inf"))
            row[token] = 0.0
            if get_parallel().tp_rank == 0:
                with open(params["notes"], "a", encoding="utf-8") as file:
                    file.write(f"{logprob!r}\n")
        return logits
