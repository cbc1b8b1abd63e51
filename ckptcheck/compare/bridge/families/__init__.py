"""The tables of the model families, chosen by `model_type`."""

from __future__ import annotations

from ckptcheck.checkpoint.config import Config
from ckptcheck.compare.bridge.families.deepseek_v3 import DEEPSEEK_V3, GLM4_MOE
from ckptcheck.compare.bridge.families.gpt_oss import GPT_OSS
from ckptcheck.compare.bridge.families.llama import LLAMA
from ckptcheck.compare.bridge.families.mixtral import MIXTRAL
from ckptcheck.compare.bridge.families.qwen3 import QWEN3, QWEN3_MOE
from ckptcheck.compare.bridge.family_table import FamilyTable

TABLES: dict[str, FamilyTable] = {
    "llama": LLAMA, "mistral": LLAMA, "qwen2": LLAMA, "qwen3": QWEN3, "qwen3_moe": QWEN3_MOE, "mixtral": MIXTRAL,
    "deepseek_v3": DEEPSEEK_V3, "glm4_moe": GLM4_MOE, "gpt_oss": GPT_OSS,
}  # fmt: skip
"""model_type → table. Qwen2 is Llama with biases on queries, keys and values, which Llama's table lists as well; Phi-3 stores
them joined, as `FUSED` says."""
TABLES |= {"deepseek_v2": DEEPSEEK_V3, "kimi_k2": DEEPSEEK_V3, "seed_oss": LLAMA, "phi3": LLAMA}


def find_family_table(config: Config | None) -> FamilyTable | None:
    """Return the table of a model's family; None if there is none."""
    if config is None:
        return None
    model_type = config.text.get("model_type") or config.model_type
    return TABLES.get(model_type) if isinstance(model_type, str) else None
