"""Tokenizer classes of transformers that take the tokens of tokenizer.json, but build their own kind of model from them.

In transformers 5, `BertTokenizer` builds a WordPiece from whatever tokens it finds; transformers 4 loaded tokenizer.json as it is.
A test compares the tables with transformers.
"""

from __future__ import annotations

KINDS = ("BPE", "Unigram", "WordPiece")
"""The kinds of models that are distinguished. WordLevel is not: another kind may read whole words as well."""
CLASSES = {
    "BPE": (
        "BartTokenizer BlenderbotTokenizer CLIPTokenizer CodeGenTokenizer CodeLlamaTokenizer CohereTokenizer DebertaTokenizer "
        "EsmcTokenizer GPT2Tokenizer GPTNeoXTokenizer GemmaTokenizer HerbertTokenizer LlamaTokenizer LukeTokenizer NllbTokenizer "
        "NougatTokenizer OpenAIGPTTokenizer Qwen2Tokenizer Qwen3_5Tokenizer ReformerTokenizer RobertaTokenizer "
        "SeamlessM4TTokenizer Siglip2Tokenizer Tipsv2Tokenizer WhisperTokenizer"
    ),
    "Unigram": (
        "AlbertTokenizer BarthezTokenizer BigBirdTokenizer CamembertTokenizer DebertaV2Tokenizer LasrTokenizer MBart50Tokenizer "
        "MBartTokenizer MLukeTokenizer PegasusTokenizer RemBertTokenizer T5Tokenizer UdopTokenizer VideoPrismTokenizer "
        "XGLMTokenizer XLMRobertaTokenizer XLNetTokenizer"
    ),
    "WordPiece": (
        "BertTokenizer DPRContextEncoderTokenizer DPRQuestionEncoderTokenizer DPRReaderTokenizer DistilBertTokenizer "
        "FunnelTokenizer MPNetTokenizer MobileBertTokenizer SplinterTokenizer SqueezeBertTokenizer"
    ),
}
"""Kind of model → the classes that build it. Classes that read tokenizer.json as it is are not listed."""
UNBOUND_TYPES = (
    "EvollaModel arctic aria beam bigbird_pegasus camembertv2-base canary chatlm cohere_asr ernie4_5 ernie4_5_moe "
    "flex_olmo fuyu glm glm4 glm4_moe glm4_moe_lite glm4v glm4v_moe glm_image glmasr got_ocr2 gpt_bigcode "
    "gradium_phonon_tts granite granitemoe granitemoehybrid granitemoeshared h2ovl_chat hyperclovax "
    "hyperclovax_vision_v2 hyperclovax_vlm internlm2 internlm3 iquestcoder jamba kimi_k25 kimi_linear kosmos-2 llava "
    "llava_next mimo_v2_flash minicpm3 minicpm_ocr minicpmv minicpmv4_6 minicpmv4_7 minimax_m2 ministral ministral3 "
    "mistral mistral3 mistral_large4 mixtral modernbert modernbert-decoder molmo molmo2 nemo_speechlm nemotron nvfp4 "
    "nystromformer olmo2 olmo3 olmo_hybrid omniasr opencua openvla paddleocr_vl pegasus_x persimmon phi3 phi3_v "
    "phimoe pix2struct pixtral pocket_tts qwen2 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen4_exp siglip2 smolvlm "
    "stablelm step3_vl umt5 vipllava voxtral voxtral_realtime xlm-roberta-xl"
)
"""Model types for which AutoTokenizer ignores the class in tokenizer_config.json: it loads tokenizer.json as it is, or takes
another class."""


def find_built_model(class_name: str, model_type: str | None) -> str | None:
    """Return the kind of model that a class builds whatever tokenizer.json says; None if it loads the file, or is unknown."""
    if model_type in UNBOUND_TYPES.split():
        return None
    name = class_name.removesuffix("Fast")
    return next((kind for kind, names in CLASSES.items() if name in names.split()), None)
