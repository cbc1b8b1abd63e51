"""Has vLLM decode given tokens one by one, so that their logprobs come from the decode path and not from prefill.

vLLM 0.32 has two model runners, each with an interface of its own for what acts on logits: the first runs on CPUs, the second
on GPUs where it knows everything that is asked of it. Which one it will be is known too late, so one class is for both.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

try:
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as Second
except ImportError:  # before 0.32
    BASES: tuple[type, ...] = (AdapterLogitsProcessor,)
else:
    BASES = (AdapterLogitsProcessor, Second)


class Forced(*BASES):  # type: ignore[misc]
    """Follows ``extra_args``: forced, a list of tokens, and after, the length of the prompt before them.

    Logprobs are taken before it acts (logprobs_mode raw).
    """

    def __init__(self, config: Any, place: Any, *pinned: Any) -> None:
        """Take what either runner gives: the first the device and whether memory is pinned, the second its requests."""
        self._slots: dict[int, tuple[int, list[int]]] = {}
        if pinned:
            AdapterLogitsProcessor.__init__(self, config, place, *pinned)

    @classmethod
    def validate_params(cls, params: Any) -> None:
        """Refuse nothing."""

    def is_argmax_invariant(self) -> bool:
        """Say that it decides what is chosen."""
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        """Return what acts on one request, for the first runner."""
        tokens = (params.extra_args or {}).get("forced")
        if tokens is None:
            return None

        def follow(output: list[int], logits: Any) -> Any:
            if len(output) < len(tokens):
                _force(logits, tokens[len(output)])
            return logits

        return follow

    def add_request(self, slot: int, params: Any) -> bool:
        """Take a request, for the second runner. Slots are used again."""
        asked = params.extra_args or {}
        self._slots.pop(slot, None)
        if "forced" not in asked:
            return False
        self._slots[slot] = (asked["after"], asked["forced"])
        return True

    def apply(self, logits: Any, batch: Any = None) -> Any:
        """Act on a step's logits, a row for each request. batch: from the second runner, its LogitsContext."""
        if batch is None:
            return AdapterLogitsProcessor.apply(self, logits)
        seen = zip(batch.idx_mapping_np.tolist(), batch.seq_lens_upper_bound_np.tolist())
        for row, (slot, length) in enumerate(seen):  # without drafts, tokens up to the one that is drawn now
            after, tokens = self._slots.get(slot, (0, []))
            if 0 <= length - after < len(tokens):
                _force(logits[row], tokens[length - after])
        return logits


def _force(logits: Any, token: int) -> None:
    wanted = logits[token].clone()
    logits.fill_(float("-inf"))
    logits[token] = wanted
