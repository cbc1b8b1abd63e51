"""Recognises and converts saved HTTP answers of vLLM; see ckptcheck/rollouts/convert/responses.py."""

from __future__ import annotations

from ckptcheck.rollouts.convert.format import RolloutFormat
from ckptcheck.rollouts.convert.responses import is_vllm, vllm

FORMATS = (RolloutFormat("vllm", is_vllm, vllm, is_json=True),)
