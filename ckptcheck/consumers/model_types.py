"""The model types that an engine registers itself and that transformers does not know.

From ``_CONFIG_REGISTRY`` of vllm/transformers_utils/config.py and of sglang/srt/utils/hf_transformers/common.py. The releases of
DeepSeek-V4 for SGLang (sgl-project/DeepSeek-V4-Flash-FP8) have the type ``deepseek_ref``, which the first versions of SGLang that
had the model registered; it is ``deepseek_v4`` since.
"""

from __future__ import annotations

REGISTERED: dict[str, frozenset[str]] = {
    "vLLM 0.32.0": frozenset((
        "RefinedWeb", "RefinedWebModel", "bagel", "bailing_moe_v3_vl", "chatglm", "colqwen3", "deepseek_v41", "deepseek_vl_v2",
        "eagle", "funaudiochat", "inkling_model", "isaac", "k3_dspark", "kimi_k2", "kimi_k3", "kimi_vl", "medusa", "midashenglm",
        "minimax_m3_mtp", "mlp_speculator", "moondream3", "openvla", "ops_colqwen3", "ovis", "qwen3_vl_nemotron_embed",
        "speculators", "step3_text", "step3_vl", "ultravox", "unlimited-ocr",
    )),
    "SGLang 0.5.23": frozenset((
        "NemotronH_Nano_Omni_Reasoning_V3", "NemotronH_Nano_VL_V2", "bailing_moe_v3_vl", "bailingmm_moe_v2_lite", "chatglm",
        "deepseek-ocr", "deepseek_v41", "deepseek_v41_text", "deepseek_v41_vision", "deepseek_vl_v2", "dots_ocr", "dots_vlm",
        "gigachat3_5", "inkling_audio_model", "inkling_model", "inkling_vision_model", "intern_s2_preview", "interns2_mobius",
        "interns2_mobius_text", "internvl_chat", "iquest_q1", "iquest_q1_mtp", "jet_nemotron", "jet_vlm", "k2_horizon", "kimi_k2",
        "kimi_k3", "kimi_vl", "locateanything", "minicpm_sala", "multi_modality", "nanbeige", "nemotron_h_puzzle", "spark2_5",
        "step3_vl", "xllm",
    )),
    "SGLang for DeepSeek-V4": frozenset(("deepseek_ref",)),
}  # fmt: skip
"""Engine and version → the types, without the types that transformers 5.24 knows too."""


def find_registering_engine(model_type: str) -> str | None:
    """Return the first engine that registers a model type itself, or None."""
    return next((engine for engine, types in REGISTERED.items() if model_type in types), None)
