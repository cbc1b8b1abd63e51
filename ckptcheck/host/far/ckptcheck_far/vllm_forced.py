"""Has vLLM decode given tokens one by one, so that their logprobs come from the decode path and not from prefill."""

from __future__ import annotations

from typing import Any

from vllm.v1.sample.logits_processor import AdapterLogitsProcessor


class Forced(AdapterLogitsProcessor):  # type: ignore[misc]
    """Follows ``extra_args["forced"]``, a list of tokens. Logprobs are taken before it acts (logprobs_mode raw)."""

    def is_argmax_invariant(self) -> bool:
        """Say that it decides what is chosen."""
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        """Return what acts on one request."""
        tokens = (params.extra_args or {}).get("forced")
        if tokens is None:
            return None

        def follow(output: list[int], logits: Any) -> Any:
            if len(output) < len(tokens):
                wanted = logits[tokens[len(output)]].clone()
                logits.fill_(float("-inf"))
                logits[tokens[len(output)]] = wanted
            return logits

        return follow
