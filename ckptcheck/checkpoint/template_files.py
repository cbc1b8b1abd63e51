"""Where the chat templates of a checkpoint stand, and which of them count.

The order of `AutoTokenizer` in transformers 5.23 (tokenization_utils_base.py): chat_template.jinja together with all of
additional_chat_templates/*.jinja, among which default.jinja comes last and counts; only where none of these is there
`chat_template` of tokenizer_config.json: a text, a list of named texts, or an object. chat_template.json is read by
processors alone (processing_utils.py), so a model for text has no use for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ckptcheck.checkpoint.config import Config, read_config
from ckptcheck.checkpoint.document import clipped, kind_of
from ckptcheck.checkpoint.source import CHAT_TEMPLATES, Source
from ckptcheck.phrase import few

MOST_TEMPLATES = 8
MOST_BYTES = 1 << 22
PROCESSORS = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
FOR_TEXT = ("ForCausalLM", "LMHeadModel")


@dataclass(frozen=True)
class Written:
    """A chat template as a file has it. undecodable: its first byte that is no UTF-8, None where it is a text."""

    name: str
    file: str
    key: str | None
    text: str
    undecodable: int | None = None


@dataclass(frozen=True)
class Fault:
    """Why transformers cannot take a template for what it is, and where that is seen."""

    text: str
    file: str
    key: str | None


@dataclass(frozen=True)
class Templates:
    """The templates, the default one first, and what is wrong with how they are written. unread: a file nobody reads."""

    written: tuple[Written, ...] = ()
    faults: tuple[Fault, ...] = ()
    unread: str | None = None


def is_for_text(source: Source, settings: Config | None, config: Config | None) -> bool:
    """Whether a model takes nothing but text, so that `AutoProcessor` gives it no processor. False where it is unknown."""
    if config is None or not (config.architecture or "").endswith(FOR_TEXT) or config.text is not config.value:
        return False
    named = [part.value.get("processor_class") for part in (settings, config) if part is not None]
    return not any(named) and not any(file in source.files for file in PROCESSORS)


def read_templates(source: Source, settings: Config | None, config: Config | None) -> Templates:
    """Find the chat templates. settings: tokenizer_config.json. Raises OSError where a file cannot be read."""
    files = {one.name: one for one in _jinja_files(source)}
    found, faults = (_in_order(files), []) if files else _in_settings(settings)
    unread = None
    if not found and not faults and (older := _processor(source)) is not None:
        if is_for_text(source, settings, config):
            unread = older.file
        else:
            found = [older]
    if found and not faults and found[0].name != "default":
        chats = "chats without tools" if found[0].name == "tool_use" else "chats"
        names = few([clipped(one.name, 40) for one in found])
        said = f"no chat template is called default, only {names}: apply_chat_template of transformers refuses {chats}"
        faults = [Fault(said, found[0].file, "chat_template" if found[0].key else None)]
    return Templates(tuple(found), tuple(faults), unread)


def _in_order(files: dict[str, Written]) -> list[Written]:
    return sorted(files.values(), key=lambda one: (one.name != "default", one.name != "tool_use"))[:MOST_TEMPLATES]


def _jinja_files(source: Source) -> Iterator[Written]:
    """Yield the files, chat_template.jinja first: one of the folder that is called default takes its place."""
    for file, entry in sorted(source.files.items(), key=lambda item: "/" in item[0]):
        folder, _, name = file.rpartition("/")
        if entry.leaves is not None or (file != "chat_template.jinja" and folder != CHAT_TEMPLATES):
            continue
        raw = source.read(file, 0, min(entry.size, MOST_BYTES))
        try:
            wrong = None
            raw.decode("utf-8")
        except UnicodeDecodeError as error:
            wrong = error.start
        text = raw.decode("utf-8", "replace")
        yield Written(name.removesuffix(".jinja") if folder else "default", file, None, text, wrong)


def _in_settings(settings: Config | None) -> tuple[list[Written], list[Fault]]:
    """Read `chat_template` of tokenizer_config.json."""
    value = settings.value.get("chat_template") if settings is not None else None
    if settings is None or value is None:
        return [], []
    named: dict[str, object] = value if isinstance(value, dict) else {} if isinstance(value, list) else {"": value}
    found: dict[str, Written] = {}
    faults = []
    for number, part in enumerate(value if isinstance(value, list) else ()):
        lacks = [key for key in ("name", "template") if not isinstance(part, dict) or key not in part]
        if lacks:
            text = f"an entry of the list has no {' and no '.join(lacks)}: transformers does not load the tokenizer"
            faults.append(Fault(text, settings.file, f"chat_template.{number}"))
        elif isinstance(part["name"], str):
            named[part["name"]] = part["template"]
    for name, template in named.items():
        key = f"chat_template.{name}" if name else "chat_template"
        if isinstance(template, str):
            found[name] = Written(name or "default", settings.file, key, template)
        else:
            what = f"the chat template is a JSON {kind_of(template)}, not a text: apply_chat_template of transformers fails"
            faults.append(Fault(what, settings.file, key))
    return _in_order(found), faults


def _processor(source: Source) -> Written | None:
    """Read chat_template.json, None where it is not there or holds no template."""
    file = "chat_template.json"
    if file not in source.files or source.files[file].leaves is not None:
        return None
    text = read_config(source, file).value.get("chat_template")
    return Written("default", file, "chat_template", text) if isinstance(text, str) else None
