"""Finds the chat templates of a checkpoint and decides which of them transformers uses.

Follows `AutoTokenizer` of transformers 5.23 (tokenization_utils_base.py): it reads chat_template.jinja together with
additional_chat_templates/*.jinja, where a default.jinja overrides chat_template.jinja. Only without these files does it read
`chat_template` of tokenizer_config.json: a string, a list of named templates, or an object. Only processors read
chat_template.json (processing_utils.py), so a text-only model ignores it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ckptcheck.checkpoint.config import Config, read_config
from ckptcheck.checkpoint.document import clip, json_kind
from ckptcheck.checkpoint.source import CHAT_TEMPLATES, Source, read_document
from ckptcheck.linter.rule import Problem
from ckptcheck.text.formatting import join_truncated

MOST_TEMPLATES = 8
"""Most templates that are rendered: each takes time in a child process, and releases have up to three (default, tool_use, rag)."""
MOST_BYTES = 1 << 22
"""Most bytes that are read of one template. One longer than `chat_template.MOST_CHARACTERS` is a finding and not rendered."""
PROCESSORS = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
HINT = "take the template of the model this one was made from"
FOR_TEXT = ("ForCausalLM", "LMHeadModel")


@dataclass(frozen=True)
class TemplateText:
    """The text of a chat template, and its place."""

    name: str
    """``default``, ``tool_use``, or another name that apply_chat_template takes."""
    file: str
    key: str | None
    """JSON path within the file; None for a .jinja file."""
    text: str
    undecodable: int | None = None
    """Offset of the first byte of the file that is not UTF-8; None where all of it is."""


@dataclass(frozen=True)
class Templates:
    """The chat templates of a checkpoint and their faults."""

    written: tuple[TemplateText, ...] = ()
    """The templates, the default one first."""
    faults: tuple[Problem, ...] = ()
    """Why transformers cannot use a template."""
    unread: str | None = None
    """A file with a template that no loader of this model reads."""


def is_text_only(source: Source, settings: Config | None, config: Config | None) -> bool:
    """Whether a model takes only text, so that `AutoProcessor` creates no processor for it; False if unknown."""
    if config is None or not (config.architecture or "").endswith(FOR_TEXT) or config.text is not config.value:
        return False
    processors = [part.value.get("processor_class") for part in (settings, config) if part is not None]
    return not any(processors) and not any(file in source.files for file in PROCESSORS)


def read_templates(source: Source, settings: Config | None, config: Config | None) -> Templates:
    """Find the chat templates.

    Args:
        source: the checkpoint's files.
        settings: tokenizer_config.json.
        config: config.json.

    Raises OSError where a file cannot be read.
    """
    files = {one.name: one for one in _jinja_files(source)}
    templates, faults = (_in_order(files), []) if files else _in_settings(settings)
    unread = None
    if not templates and not faults and (processor_template := _processor(source)) is not None:
        if is_text_only(source, settings, config):
            unread = processor_template.file
        else:
            templates = [processor_template]
    if templates and not faults and templates[0].name != "default":
        chats = "chats without tools" if templates[0].name == "tool_use" else "chats"
        names = join_truncated([clip(one.name, 40) for one in templates])
        message = (
            f"no chat template is called default, only {names}: apply_chat_template of transformers refuses {chats}"
        )
        faults = [Problem(message, templates[0].file, "chat_template" if templates[0].key else None, HINT)]
    return Templates(tuple(templates), tuple(faults), unread)


def _in_order(files: dict[str, TemplateText]) -> list[TemplateText]:
    return sorted(files.values(), key=lambda one: (one.name != "default", one.name != "tool_use"))[:MOST_TEMPLATES]


def _jinja_files(source: Source) -> Iterator[TemplateText]:
    """Yield the templates of the .jinja files, chat_template.jinja first: a default.jinja in the folder overrides it."""
    for file, entry in sorted(source.files.items(), key=lambda item: "/" in item[0]):
        folder, _, name = file.rpartition("/")
        if entry.outside_link is not None or (file != "chat_template.jinja" and folder != CHAT_TEMPLATES):
            continue
        raw = read_document(source, file, MOST_BYTES)
        try:
            undecodable = None
            raw.decode("utf-8")
        except UnicodeDecodeError as error:
            undecodable = error.start
        text = raw.decode("utf-8", "replace")
        yield TemplateText(name.removesuffix(".jinja") if folder else "default", file, None, text, undecodable)


def _in_settings(settings: Config | None) -> tuple[list[TemplateText], list[Problem]]:
    """Read `chat_template` of tokenizer_config.json."""
    value = settings.value.get("chat_template") if settings is not None else None
    if settings is None or value is None:
        return [], []
    named: dict[str, object] = value if isinstance(value, dict) else {} if isinstance(value, list) else {"": value}
    templates: dict[str, TemplateText] = {}
    faults = []
    for number, part in enumerate(value if isinstance(value, list) else ()):
        missing = [key for key in ("name", "template") if not isinstance(part, dict) or key not in part]
        if missing:
            text = f"an entry of the list has no {' and no '.join(missing)}: transformers does not load the tokenizer"
            faults.append(Problem(text, settings.file, f"chat_template.{number}", HINT))
        elif isinstance(part["name"], str):
            named[part["name"]] = part["template"]
    for name, template in named.items():
        key = f"chat_template.{name}" if name else "chat_template"
        if isinstance(template, str):
            templates[name] = TemplateText(name or "default", settings.file, key, template)
        else:
            message = f"the chat template is a JSON {json_kind(template)}, not a string: apply_chat_template of transformers fails"
            faults.append(Problem(message, settings.file, key, HINT))
    return _in_order(templates), faults


def _processor(source: Source) -> TemplateText | None:
    """Read chat_template.json; None where it is absent or holds no template."""
    file = "chat_template.json"
    if file not in source.files or source.files[file].outside_link is not None:
        return None
    text = read_config(source, file).value.get("chat_template")
    return TemplateText("default", file, "chat_template", text) if isinstance(text, str) else None
