"""Recognises and converts saved HTTP answers of SGLang; see ckptcheck/rollouts/convert/responses.py."""

from __future__ import annotations

from ckptcheck.rollouts.convert.format import RolloutFormat
from ckptcheck.rollouts.convert.responses import is_sglang, sglang

FORMATS = (RolloutFormat("sglang", is_sglang, sglang, is_json=True),)
