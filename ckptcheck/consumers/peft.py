"""How PEFT reads an adapter_config.json: the modules to which it adds matrices.

Source: PEFT 0.21, `LoraConfig` (peft/tuners/lora/config.py) and `check_target_module_exists` (peft/tuners/tuners_utils.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property

from ckptcheck.checkpoint.config import Config
from ckptcheck.consumers.regex_set import Automaton

LAYER = re.compile(r"\.[^.]*+\.(\d{1,9})\.")


def is_lora(config: Config | None) -> bool:
    """Whether a config declares LoRA by its `peft_type`."""
    return config is not None and config.value.get("peft_type") == "LORA"


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
