"""Tokenizer classes of transformers that build a BPE from vocab.json and merges.txt if there is no tokenizer.json.

The library `tokenizers` reads the two files for these classes, and refuses either without the other. Classes written in Python
(BioGPT, CTRL, XLM) read files of these names in other ways, and are not listed. A test compares the table with transformers.
"""

from __future__ import annotations

PAIRED = {
    "BartTokenizer": "florence2",
    "BlenderbotTokenizer": "blenderbot",
    "CLIPTokenizer": "aimv2 clip clipseg groupvit omdet-turbo oneformer owlv2 owlvit sam3 sam3_video xclip",
    "CodeGenTokenizer": "",
    "CohereTokenizer": "aya_vision cohere cohere2",
    "DebertaTokenizer": "deberta",
    "GPT2Tokenizer": (
        "blip-2 codegen dbrx emu3 gpt2 gpt_neo gptj hyperclovax_vision_v2 instructblip instructblipvideo "
        "jais2 opt phi starcoder2"
    ),
    "GPTNeoXTokenizer": "falcon_mamba gpt_neox mamba mamba2 mpt olmo olmoe rwkv xlstm",
    "HerbertTokenizer": "herbert",
    "LEDTokenizer": "led",
    "LayoutLMv3Tokenizer": "layoutlmv3",
    "LukeTokenizer": "luke",
    "MarkupLMTokenizer": "markuplm",
    "MvpTokenizer": "mvp",
    "NougatTokenizer": "nougat pp_formulanet",
    "OpenAIGPTTokenizer": "openai-gpt",
    "Qwen2Tokenizer": (
        "audioflamingo3 colqwen2 cosmos3_omni dots3_note fun_asr_nano hunyuan_vl internvl lighton_ocr "
        "moss_transcribe_diarize ovis2 qianfan_ocr qwen2 qwen2_5_omni qwen2_5_vl qwen2_audio qwen2_moe "
        "qwen2_vl qwen3 qwen3_asr qwen3_moe qwen3_next qwen3_omni_moe qwen3_vl qwen3_vl_moe vibevoice"
    ),
    "RobertaTokenizer": "bart bridgetower clap data2vec-text ibert lilt longformer mega mra roberta roberta-prelayernorm",
    "WhisperTokenizer": "whisper",
}
"""Class → the model types for which transformers 5.24 takes it if tokenizer_config.json names no class."""


def reads_pair(class_name: object, model_type: str | None) -> bool:
    """Whether transformers reads the two files, by the class in tokenizer_config.json, else by the model type."""
    if isinstance(class_name, str):
        return class_name.removesuffix("Fast") in PAIRED
    return any(model_type in types.split() for types in PAIRED.values())
