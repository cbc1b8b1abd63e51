"""Tokenizers of transformers that build their model themselves, with the tokens of tokenizer.json but not with its kind of model.

transformers 5 makes a `BertTokenizer` a WordPiece of whatever tokens it finds; transformers 4 read tokenizer.json as it is. A test
holds the tables against transformers.
"""

from __future__ import annotations

KINDS = ("BPE", "Unigram", "WordPiece")
"""The kinds of models that are told apart. Whole words (WordLevel) may be read by another kind as well."""
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
"""Model types for which AutoTokenizer does not take the class that tokenizer_config.json names: it reads tokenizer.json as it is,
or takes a class of its own choice."""


def find_built_model(class_name: str, model_type: str | None) -> str | None:
    """Return the kind of model that a class builds, whatever tokenizer.json says; None where it reads the file, or is not known."""
    if model_type in UNBOUND_TYPES.split():
        return None
    name = class_name.removesuffix("Fast")
    return next((kind for kind, names in CLASSES.items() if name in names.split()), None)
