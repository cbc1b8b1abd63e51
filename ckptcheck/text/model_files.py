"""Names that only files of a model have, so that no report overwrites one."""

from __future__ import annotations

from pathlib import Path

from ckptcheck.errors import UsageError

ENDINGS = (".safetensors", ".index.json", ".bin", ".gguf", ".distcp", ".jinja")
"""Of weights, of their index, and of chat templates."""
NAMES = frozenset(
    {
        "adapter_config.json", "added_tokens.json", "chat_template.json", "config.json", "generation_config.json",
        "hf_quant_config.json", "merges.txt", "preprocessor_config.json", "processor_config.json", "quantize_config.json",
        "special_tokens_map.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt",
    }
)  # fmt: skip


OWN = b'{"__metadata__":{"ckptcheck.'
"""Beginning of a safetensors header that ckptcheck wrote: rollouts."""


def refuse_model_file(output: Path | None) -> None:
    """Raise UsageError for an existing file with a name that only a model's file has, except ckptcheck's own rollouts."""
    if output is None or not (output.name in NAMES or output.name.endswith(ENDINGS)):
        return
    if output.is_file() and not _is_own(output):
        raise UsageError(
            f"{output} is a file of a model, and would be overwritten", hint="give the output another name"
        )


def _is_own(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(8 + len(OWN))[8:] == OWN
    except OSError:  # an unreadable file may be a model's
        return False
