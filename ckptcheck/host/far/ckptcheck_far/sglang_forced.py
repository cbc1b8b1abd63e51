"""Has SGLang decode given tokens one by one, so that their logprobs come from the decode path and not from prefill."""

from __future__ import annotations

from typing import Any

from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor


class Forced(CustomLogitProcessor):  # type: ignore[misc]
    """Follows ``custom_params["forced"]``, a list of tokens, and notes what it would have said of each.

    SGLang takes logprobs after this has acted, when only one token is left; so they are written to ``custom_params["notes"]``,
    a line for each token.
    """

    def __call__(self, logits: Any, custom_param_list: list[dict[str, Any]] | None = None) -> Any:
        """Act on the rows of a batch."""
        from sglang.srt.runtime_context import get_parallel

        for row, params in zip(logits, custom_param_list or []):
            if getattr(params["__req__"], "inflight_middle_chunks", 0) > 0:
                continue  # a part of the prompt: nothing is sampled
            # counted here: with overlap scheduling the token before is not among the request's output yet
            place = params.get("place", 0)
            params["place"] = place + 1
            if place >= len(params["forced"]):
                continue
            wanted = int(params["forced"][place])
            value = float(row.float().log_softmax(-1)[wanted])
            row.fill_(float("-inf"))
            row[wanted] = 0.0
            if get_parallel().tp_rank == 0:
                with open(params["notes"], "a", encoding="utf-8") as file:
                    file.write(f"{value!r}\n")
        return logits
