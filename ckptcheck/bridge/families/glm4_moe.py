"""GLM-4.5 (MoE): attention of Qwen, experts and multi-token prediction of DeepSeek-V3."""

from ckptcheck.bridge.families.deepseek_v3 import COPIES, PREDICTION, SHARED
from ckptcheck.bridge.families.qwen3_moe import QWEN3_MOE
from ckptcheck.bridge.table import Table

GLM4_MOE = Table({**QWEN3_MOE.megatron, **SHARED, **PREDICTION}, QWEN3_MOE.variants, COPIES)
