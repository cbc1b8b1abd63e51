"""Forces vLLM to decode given tokens one by one, so that their logprobs come from the decode path and not from prefill.

vLLM 0.32 has two model runners with different interfaces for logits processors: the first runs on CPUs, the second on GPUs
where it supports every requested feature. vLLM chooses the runner after it loads this class, so one class serves both.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

try:
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as GpuLogitsProcessor
except ImportError:  # before 0.32
    BASES: tuple[type, ...] = (AdapterLogitsProcessor,)
else:
    BASES = (AdapterLogitsProcessor, GpuLogitsProcessor)


class ForceTokens(*BASES):  # type: ignore[misc]
    """Forces the tokens of a request's ``extra_args``: ``forced``, a list of tokens, and ``after``, the length of its prompt.

    vLLM takes logprobs before it calls this processor (logprobs_mode raw).
    """

    def __init__(self, config: Any, place: Any, *pinned: Any) -> None:
        """Accept the arguments of both runners: the first passes the device and is_pin_memory, the second its request states."""
        self._slots: dict[int, tuple[int, list[int]]] = {}
        if pinned:
            AdapterLogitsProcessor.__init__(self, config, place, *pinned)

    @classmethod
    def validate_params(cls, params: Any) -> None:
        """Accept every request."""

    def is_argmax_invariant(self) -> bool:
        """Return False: it changes which token is the most likely."""
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        """Return the processor of one request, for the first runner; None for a request without forced tokens."""
        tokens = (params.extra_args or {}).get("forced")
        if tokens is None:
            return None

        def force_next(output: list[int], logits: Any) -> Any:
            if len(output) < len(tokens):
                _force(logits, tokens[len(output)])
            return logits

        return force_next

    def add_request(self, slot: int, params: Any) -> bool:
        """Register a request, for the second runner, which reuses slots. Returns whether the request has forced tokens."""
        arguments = params.extra_args or {}
        self._slots.pop(slot, None)
        if "forced" not in arguments:
            return False
        self._slots[slot] = (arguments["after"], arguments["forced"])
        return True

    def apply(self, logits: Any, batch: Any = None) -> Any:
        """Change the logits of one step, one row a request. batch: the LogitsContext of the second runner, None from the first."""
        if batch is None:
            return AdapterLogitsProcessor.apply(self, logits)
        # without drafts, a length counts the tokens before the one that this step samples
        lengths = zip(batch.idx_mapping_np.tolist(), batch.seq_lens_upper_bound_np.tolist())
        for row, (slot, length) in enumerate(lengths):
            after, tokens = self._slots.get(slot, (0, []))
            if 0 <= length - after < len(tokens):
                _force(logits[row], tokens[length - after])
        return logits


def _force(logits: Any, token: int) -> None:
    logit = logits[token].clone()
    logits.fill_(float("-inf"))
    logits[token] = logit
