"""The tables of the families, and which one a model takes."""

from __future__ import annotations

from ckptcheck.bridge.families.deepseek_v3 import DEEPSEEK_V3
from ckptcheck.bridge.families.glm4_moe import GLM4_MOE
from ckptcheck.bridge.families.gpt_oss import GPT_OSS
from ckptcheck.bridge.families.llama import LLAMA
from ckptcheck.bridge.families.mixtral import MIXTRAL
from ckptcheck.bridge.families.qwen2 import QWEN2
from ckptcheck.bridge.families.qwen3 import QWEN3
from ckptcheck.bridge.families.qwen3_moe import QWEN3_MOE
from ckptcheck.bridge.table import Table
from ckptcheck.checkpoint.config import Config

TABLES: dict[str, Table] = {
    "llama": LLAMA, "mistral": LLAMA, "qwen2": QWEN2, "qwen3": QWEN3, "qwen3_moe": QWEN3_MOE, "mixtral": MIXTRAL,
    "deepseek_v3": DEEPSEEK_V3, "glm4_moe": GLM4_MOE, "gpt_oss": GPT_OSS,
}  # fmt: skip
"""model_type → table."""
TABLES |= {"deepseek_v2": DEEPSEEK_V3, "kimi_k2": DEEPSEEK_V3, "seed_oss": QWEN2}


def table_of(config: Config | None) -> Table | None:
    """Return the table of a model's family, None where it is not known."""
    if config is None:
        return None
    found = config.text.get("model_type") or config.model_type
    return TABLES.get(found) if isinstance(found, str) else None
