"""How PEFT reads an adapter_config.json: the settings that it refuses, and the modules to which it adds matrices.

Source: PEFT 0.21, `LoraConfig` (peft/tuners/lora/config.py) and `check_target_module_exists` (peft/tuners/tuners_utils.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

from ckptcheck.checkpoint.config import Config
from ckptcheck.consumers.regex_set import Automaton
from ckptcheck.text.formatting import join_truncated

KINDS: dict[str, tuple[type, ...]] = {
    "a number": (int, float),
    "a whole number": (int,),
    "true or false": (bool,),
    "a list or a string": (list, str, type(None)),
    "a list": (list, type(None)),
    "a list or a whole number": (list, int, type(None)),
    "a list or an object": (list, dict, type(None)),
    "true, false or a string": (bool, str, type(None)),
    "an object": (dict,),
    "an object or null": (dict, type(None)),
}
SETTINGS = {
    "r": "a whole number",
    "lora_alpha": "a number",
    "lora_dropout": "a number",
    "target_modules": "a list or a string",
    "exclude_modules": "a list or a string",
    "modules_to_save": "a list",
    "target_parameters": "a list",
    "layers_to_transform": "a list or a whole number",
    "layers_pattern": "a list or a string",
    "rank_pattern": "an object",
    "alpha_pattern": "an object",
    "trainable_token_indices": "a list or an object",
    "layer_replication": "a list",
    "init_lora_weights": "true, false or a string",
    "alora_invocation_tokens": "a list",
    **dict.fromkeys(
        (
            "megatron_config", "eva_config", "corda_config", "lora_ga_config", "velora_config", "monteclora_config",
            "arrow_config", "kasa_config", "use_bdlora",
        ),
        "an object or null",
    ),
}  # fmt: skip
"""Setting of `LoraConfig` → the kind of value, for settings that PEFT computes with when it loads an adapter."""
UNSERVED = {
    "use_dora": "DoRA",
    "lora_bias": "biases of LoRA",
    "alora_invocation_tokens": "activated LoRA",
    "layer_replication": "replicated layers",
    "use_bdlora": "block-diagonal LoRA",
    "use_qalora": "QALoRA",
}
"""Setting that PEFT takes and vLLM 0.32 refuses → what it asks for."""
SERVED_STARTS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")
"""The words of `init_lora_weights` that leave the base model as it is; PiSSA, OLoRA, CorDA and LoftQ change it."""
SWITCHES = ("use_dora", "use_rslora", "lora_bias", "use_qalora", "fan_in_fan_out", "ensure_weight_tying")
VARIANTS = {
    "lora_magnitude_vector": ("use_dora", "DoRA", "from the base model's weight"),
    "lora_diag": ("kasa_config", "KaSA", "from random numbers"),
    "lora_monteclora_sampler": ("monteclora_config", "MonteCLoRA", "from random numbers"),
    "lora_velora_embed": ("velora_config", "VeLoRA", "anew"),
}
"""Tensor that a variant of LoRA stores beside lora_A and lora_B → the setting, the variant, and PEFT's value if it is missing."""
TASKS = ("SEQ_CLS", "SEQ_2_SEQ_LM", "CAUSAL_LM", "TOKEN_CLS", "QUESTION_ANS", "FEATURE_EXTRACTION")
BIASES = ("none", "all", "lora_only")
NEEDED = ("r", "lora_alpha", "target_modules")
"""Settings without which vLLM 0.32 refuses an adapter (vllm/lora/peft_helper.py); PEFT's defaults are 8, 8 and per family."""
FAMILY_TARGETS = frozenset(
    frozenset(names.split())
    for names in (
        "Wqkv", "c_attn c_proj", "c_attn", "fc1 fc2 q_proj v_proj", "in_proj", "q_proj k_proj v_proj o_proj", "q v",
        "q_proj v_proj", "key value receptance output", "qkv_proj", "query value", "query_key_value", "query_proj value_proj",
    )
)  # fmt: skip
"""The modules that PEFT 0.21 takes if `target_modules` is null, for every family (peft/utils/constants.py)."""
LAYER = re.compile(r"\.[^.]*+\.(\d{1,9})\.")


def is_lora(config: Config | None) -> bool:
    """Whether a config declares LoRA by its `peft_type`."""
    return config is not None and config.value.get("peft_type") == "LORA"


def list_unserved(settings: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the key of each setting of LoRA that PEFT takes and vLLM refuses, and what it asks for.

    Source: `PEFTHelper._validate_features` in vllm/lora/peft_helper.py of vLLM 0.32.
    """
    saved = settings.get("modules_to_save")
    whole = [name for name in saved if name not in ("classifier", "score")] if isinstance(saved, list) else []
    if whole:
        yield "modules_to_save", f"whole modules ({join_truncated(list(map(str, whole)))})"
    for key, what in UNSERVED.items():
        if settings.get(key) and not isinstance(settings[key], str):
            yield key, what
    start = settings.get("init_lora_weights")
    if isinstance(start, str) and start.lower() not in SERVED_STARTS:
        yield "init_lora_weights", f"a base model that {start[:20]} changes"


def list_refusals(settings: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the key of each setting of LoRA that PEFT or vLLM refuses, and why, as the end of a sentence."""
    for key, kind in SETTINGS.items():
        if key not in settings:
            continue
        value: Any = settings[key]
        if not isinstance(value, KINDS[kind]) or (isinstance(value, bool) and bool not in KINDS[kind]):
            yield key, f"is {_write(value)}, and PEFT needs {kind}"
        elif key == "r" and settings["r"] < 1:
            yield key, f"is {_write(value)}, and PEFT needs at least 1"
        elif key == "lora_dropout" and not 0 <= settings["lora_dropout"] <= 1:
            yield key, f"is {_write(value)}, and PEFT needs a number from 0 to 1"
        elif key == "lora_alpha" and value == 0:
            yield key, "is 0, and with it the adapter changes nothing"
        elif isinstance(value, dict) and key in ("rank_pattern", "alpha_pattern"):
            odd = next(
                (name for name, number in value.items() if type(number) not in (int, float) or number <= 0), None
            )
            if odd is not None:
                yield key, f"gives {odd!r} {_write(value[odd])}, and PEFT needs a number above 0"
        elif isinstance(value, list) and key in ("target_modules", "exclude_modules", "modules_to_save"):
            if any(not isinstance(name, str) for name in value):
                yield key, "lists something that is not a string"
        elif key == "layers_to_transform" and isinstance(value, list) and any(type(each) is not int for each in value):
            yield key, "lists something that is no whole number"
    for key in SWITCHES:
        if settings.get(key) is not None and not isinstance(settings[key], bool):
            yield key, f"is {_write(settings[key])}, and PEFT needs true or false"
    if "bias" in settings and settings["bias"] not in BIASES:
        yield "bias", f"is {_write(settings['bias'])}, and PEFT knows none, all and lora_only"
    if settings.get("task_type") is not None and settings["task_type"] not in TASKS:
        yield "task_type", f"is {_write(settings['task_type'])}, and PEFT knows {', '.join(TASKS)}"
    targets: Any = settings.get("target_modules")
    parameters: Any = settings.get("target_parameters")
    for name in parameters if isinstance(parameters, list) and isinstance(targets, list) else []:
        if isinstance(name, str) and name.rpartition(".")[0].rpartition(".")[2] in targets:
            yield (
                "target_parameters",
                f"names {_write(name)}, whose module target_modules names too, and PEFT takes only one of them",
            )
    for key in ("arrow_config", "velora_config"):
        if isinstance(settings.get(key), dict) and not any(settings[key].values()):
            yield key, "is empty, and PEFT needs null, or its settings"
    yield from _list_contradictions(settings)
    for key in NEEDED:
        if key not in settings and not (key == "target_modules" and settings.get("target_parameters")):
            usual = "the modules that it lists for the model's family" if key == "target_modules" else "8"
            yield key, f"is missing: vLLM refuses the adapter, and PEFT takes {usual}"


def _list_contradictions(settings: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the settings that contradict each other by `LoraConfig.__post_init__`."""
    layers, pattern = settings.get("layers_to_transform"), settings.get("layers_pattern")
    if isinstance(settings.get("target_modules"), str):
        for key, value in (("layers_to_transform", layers), ("layers_pattern", pattern)):
            if value is not None:
                yield key, "is set, and PEFT takes no layers where target_modules is a string"
    elif pattern and layers is None:
        yield "layers_pattern", "is set, and PEFT needs layers_to_transform with it"
    if settings.get("lora_bias") is True and settings.get("use_dora") is True:
        yield "lora_bias", "is true, and PEFT has no biases with use_dora"
    if settings.get("alora_invocation_tokens") is not None and settings.get("task_type") != "CAUSAL_LM":
        yield "alora_invocation_tokens", "is set, and PEFT takes it with the task_type CAUSAL_LM only"


def _write(value: Any) -> str:
    return repr(value)[:40]


class Targets:
    """The modules to which a LoRA config gives matrices."""

    def __init__(self, config: Config) -> None:
        """Read the settings that choose modules."""
        self.settings = config.value

    @cached_property
    def is_known(self) -> bool:
        """Whether ckptcheck can tell the modules: not for `all-linear`, nor for a regex that it cannot evaluate."""
        targets, excluded = self.settings.get("target_modules"), self.settings.get("exclude_modules")
        if isinstance(targets, str) and targets != "all-linear":
            return not self._included.unsupported and (not isinstance(excluded, str) or not self._excluded.unsupported)
        return isinstance(targets, list) and not (isinstance(excluded, str) and self._excluded.unsupported)

    @cached_property
    def _included(self) -> Automaton:
        return Automaton({0: str(self.settings["target_modules"])}, full=True)

    @cached_property
    def _excluded(self) -> Automaton:
        return Automaton({0: str(self.settings["exclude_modules"])}, full=True)

    def includes(self, module: str) -> bool:
        """Whether PEFT adds matrices to a module of the base model. Raises UnsupportedRegex if a pattern takes too long."""
        settings = self.settings
        excluded, saved = settings.get("exclude_modules"), settings.get("modules_to_save")
        if isinstance(excluded, str) and excluded and self._excluded.match(module):
            return False
        if isinstance(excluded, list) and _is_listed(module, excluded):
            return False
        if isinstance(saved, list) and any(f".{name}." in f".{module}." for name in saved):
            return False
        targets = settings.get("target_modules")
        if isinstance(targets, str):
            return bool(self._included.match(module))
        if not isinstance(targets, list) or module in targets:
            return isinstance(targets, list)
        return _is_listed(module, targets) and self._has_layer(module)

    def _has_layer(self, module: str) -> bool:
        layers, pattern = self.settings.get("layers_to_transform"), self.settings.get("layers_pattern")
        if layers is None or layers == []:
            return True
        patterns = [pattern] if isinstance(pattern, str) and pattern else pattern or []
        found = LAYER.search(module)
        for each in patterns:
            found = re.match(rf"(?:^|.*?\.){re.escape(each)}\.(\d{{1,9}})\.", module)
            if found:
                break
        return found is not None and (int(found[1]) == layers if isinstance(layers, int) else int(found[1]) in layers)


def _is_listed(module: str, names: Iterable[str]) -> bool:
    return any(module == name or module.endswith(f".{name}") for name in names)
