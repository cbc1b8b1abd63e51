"""Which of a checkpoint's chat templates count, held to what AutoTokenizer of transformers takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckptcheck.checkpoint import chat_template
from ckptcheck.checkpoint.chat_template import TOOL
from tests.checkpoint.test_tokenizer import codes, edited, tokenizer_of
from tests.conftest import needs
from tests.factories.checkpoint_cases import build_checkpoint


def in_transformers(folder: Path, *, tools: bool) -> str | None:
    """What `apply_chat_template` of transformers makes of a question; None where it, or the loading before it, fails."""
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(folder)
        said = loaded.apply_chat_template(
            [{"role": "user", "content": "Zebras"}], tokenize=False, tools=[TOOL] if tools else None
        )
    except Exception:
        return None
    assert isinstance(said, str)
    return said


JINJA = "{% for m in messages %}<|im_start|>{{ m.role + m.content }}<|im_end|>{% endfor %}"
SAID = "{{ messages[-1].content }}"
WRITTEN: dict[str, tuple[bool, dict[str, str], Any]] = {
    "a file": (True, {}, None),
    "a file, and others beside it": (True, {"tool_use": "tools", "rag": "rag"}, None),
    "a default among the others counts": (True, {"default": "another" + SAID}, None),
    "only others, one of them the default": (False, {"default": JINJA, "tool_use": "tools"}, None),
    "only others, and no default": (False, {"tool_use": "tools"}, None),
    "a file and the settings": (True, {}, "of the settings" + SAID),
    "others and the settings": (False, {"rag": "rag"}, "of the settings" + SAID),
    "the settings": (False, {}, "of the settings" + SAID),
    "an object": (False, {}, {"default": "a" + SAID, "tool_use": "b"}),
    "an object without a default": (False, {}, {"rag": "b"}),
    "a list": (False, {}, [{"name": "tool_use", "template": "b"}, {"name": "default", "template": "a" + SAID}]),
    "a list with one name twice": (
        False,
        {},
        [{"name": "default", "template": "b" + SAID}, {"name": "default", "template": "a" + SAID}],
    ),
    "a list without a default": (False, {}, [{"name": "tool_use", "template": "b"}]),
    "an entry without a template": (False, {}, [{"name": "default", "template": "b" + SAID}, {"name": "rag"}]),
    "a list of texts": (False, {}, ["a"]),
    "a number": (False, {}, 5),
    "no text for the default": (False, {}, {"default": 5, "rag": "a"}),
    "a syntax error in the one for tools": (True, {"tool_use": "{% for x in %}"}, None),
    "a syntax error in one that is asked for by name": (True, {"rag": "{{ broken("}, None),
    "an empty file": (True, {"default": ""}, None),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_the_templates_that_count_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    needs("transformers", "torch")
    jinja, others, settings = WRITTEN[name]
    folder = build_checkpoint({"base": "tiny-chat", "text": {"chat_template.jinja": JINJA}}, tmp_path / "ckpt")
    if not jinja:
        (folder / "chat_template.jinja").unlink()
    for other, text in others.items():
        (folder / "additional_chat_templates").mkdir(exist_ok=True)
        (folder / "additional_chat_templates" / f"{other}.jinja").write_text(text, encoding="utf-8")
    edited(folder, "tokenizer_config.json", chat_template=settings)
    read = tokenizer_of(folder)
    theirs = [in_transformers(folder, tools=tools) for tools in (False, True)]
    for said, found in zip(theirs, (read.template, read.templates.get("tool_use", read.template)), strict=True):
        if said is not None:
            assert found is not None
            assert found.rendered["asked, no prompt"].replace("Zebras ask alpha", "Zebras") == said
    broken = not all(theirs) or "by name" in name
    assert ("TOK006" in codes(folder)) is broken


def test_no_template_is_read_through_a_link_that_leaves(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.jinja").write_text("{{ secret }}", encoding="utf-8")
    folder = build_checkpoint({"base": "tiny-chat"}, tmp_path / "whole")
    (folder / "additional_chat_templates").symlink_to(outside)
    assert list(tokenizer_of(folder).templates) == ["default"]
    folder = build_checkpoint({"base": "tiny-chat"}, tmp_path / "single")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "secret.jinja").symlink_to(outside / "secret.jinja")
    (folder / "additional_chat_templates" / "rag.jinja").symlink_to("../chat_template.jinja")
    assert list(tokenizer_of(folder).templates) == ["default", "rag"]


def test_a_byte_order_mark_heads_every_prompt(tmp_path: Path) -> None:
    needs("transformers", "torch")
    folder = build_checkpoint(
        {"base": "tiny-chat", "text": {"chat_template.jinja": "\ufeff" + JINJA}}, tmp_path / "ckpt"
    )
    said = in_transformers(folder, tools=False)
    assert said is not None
    assert said.startswith("\ufeff<|im_start|>")


def test_a_text_that_is_too_long_is_sent_to_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template of 63 MB in tokenizer_config.json took twenty seconds of a child, to be told that it is too long."""
    monkeypatch.setattr(chat_template, "run_sandboxed", lambda *_, **__: pytest.fail("it was sent"))
    template = chat_template.ChatTemplate("tokenizer_config.json", "chat_template", "x" * (1 << 20) + "x")
    assert template.exceeded_limit == "it has 1,048,577 characters"
    assert (template.failure, template.syntax_error, template.rewritten_turns) == (None, None, ())
    assert (template.escapes, template.literals, template.shows_questions) == ((), "", False)
