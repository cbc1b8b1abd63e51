"""Renders chat templates and reads tokenizers that were made to do harm."""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.checkpoint import chat_template, sandbox
from ckptcheck.checkpoint.chat_template import ChatTemplate
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.errors import EvidenceError
from ckptcheck.linter.runner import run_rules
from tests.checkpoint.test_tokenizer import CHAT, RULES, edited, scan
from tests.factories.checkpoint_cases import build_checkpoint


def rendering(text: str) -> ChatTemplate:
    return ChatTemplate("chat_template.jinja", None, text, {"eos_token": "</s>"})


HOSTILE = {
    "loops in loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a range beyond jinja's": "{% for a in range(10**9) %}{% endfor %}",
    "a string of ten billion": "{{ 'a' * 10**10 }}",
    "a list of ten billion": "{{ [0] * 10**10 }}",
    "doubling": "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
    "a width": "{{ '%099999999999d' % 1 }}",
    "a width by format": "{{ '{:>9999999999}'.format(1) }}",
    "centred": "{{ 'a' | center(10**11) }}",
    "a power": "{{ (9 ** (9 ** (9 ** 9))) | string | length }}",
    "a macro that calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a macro that calls itself twice": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}",
    "much text": "{% for a in range(99999) %}{{ 'a' * 999 }}{% endfor %}",
    "nested deeply": "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}",
    "nested blocks": "{% if 1 %}" * 5000 + "{% endif %}" * 5000,
    "a megabyte and more": "{# " + "a" * 2_000_000 + " #}",
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.slow
def test_a_hostile_template_comes_to_an_end(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = rendering(HOSTILE[name])
    assert found.exceeded_limit or found.syntax_error or found.failure
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert spent < chat_template.SECONDS + 2
    # kB: 512 MiB and what the process had before; children of earlier tests may have taken more.
    assert after.ru_maxrss <= max(before.ru_maxrss, 700_000)


ESCAPES = {
    "the class of a string": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "by a filter": "{{ '' | attr('__class__') | attr('__mro__') }}",
    "by a format": "{{ '{0.__class__.__init__.__globals__}'.format(raise_exception) }}",
    "globals of a function": "{{ raise_exception.__globals__['os'].system('touch ' + '@') }}",
    "a macro's globals": "{% macro f() %}{% endmacro %}{{ f.__init__.__globals__ }}",
    "builtins of cycler": "{{ cycler.__init__.__globals__.os.popen('touch @').read() }}",
    "an import": "{% import 'os' as os %}{{ os.system('touch @') }}",
    "an include": "{% include '/etc/passwd' %}",
    "an extends": "{% extends '/etc/passwd' %}",
    "a namespace with an underscore": "{% set ns = namespace(__class__=1) %}{{ ns }}",
    "a bound method of the date": "{{ strftime_now.__self__.__class__.__subclasses__() }}",
}


@pytest.mark.parametrize("name", ESCAPES)
def test_a_template_gets_nowhere(name: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    found = rendering(ESCAPES[name].replace("@", str(mark)))
    assert found.failure or found.syntax_error or set(found.rendered.values()) <= {"", "touch"}
    assert not mark.exists()
    said = str([line for line in found._answer.lines if "text" in line])
    for secret in ("<class", "root:", "__builtins__", "Popen"):
        assert secret not in said


def test_the_child_gets_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    seen = {}
    real = subprocess.Popen

    def spy(*arguments: Any, **options: Any) -> Any:
        seen.update(options["env"])
        return real(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", spy)
    assert rendering("{{ messages[0].content }}").rendered
    assert seen
    assert "hf_secret" not in seen.values()


def test_a_jinja2_in_the_working_directory_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jinja2.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", ".")
    assert rendering("{{ messages[0].content }}").rendered
    assert not (tmp_path / "mark").exists()


def test_a_limit_strikes_before_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "WALL", 0.01)
    with pytest.raises(EvidenceError, match="too busy"):
        _ = rendering(HOSTILE["loops in loops"]).exceeded_limit


def test_where_the_library_is_missing_the_rule_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = tmp_path / "child.py"
    text = sandbox.CHILD.read_text(encoding="utf-8")
    child.write_text(
        text.replace("import sys\n", "import sys\nsys.modules['jinja2'] = sys.modules['tokenizers'] = None\n", 1)
    )
    monkeypatch.setattr(sandbox, "CHILD", child)
    report = scan(CHAT)
    skipped = dict(report.skipped)
    assert skipped["TOK006"] == "the library jinja2 is not installed"
    assert skipped["TOK008"] == "the library tokenizers is not installed"
    assert not report.findings


def test_elsewhere_nothing_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert dict(scan(CHAT).skipped)["TOK006"].startswith("needs Linux")


def test_what_tokenizers_refuses_is_reported(tmp_path: Path) -> None:
    for number, change in enumerate(
        ({"model": {"type": "WordLevel", "vocab": {"a": "9"}, "unk_token": "a"}}, {"model": None}, {"version": "9.9"})
    ):
        folder = build_checkpoint({"base": "tiny-chat"}, tmp_path / f"{number}")
        edited(folder, "tokenizer.json", **change)
        report = run_rules(open_checkpoint(str(folder)), [rule for rule in RULES if rule.code == "TOK008"])
        assert len(report.findings) == 1, change
        assert report.findings[0].message.startswith("the library tokenizers does not load it: ")
        assert report.findings[0].file == "tokenizer.json"


ODD = [
    "null",
    "[]",
    "3",
    '""',
    '{"content": 3}',
    '{"a": {"b": [[]]}}',
    "-1",
    "1e400",
    "[[[[[]]]]]",
    "true",
    '"\\ud800"',
]


@pytest.mark.parametrize("seed", range(40))
def test_odd_values_never_crash_a_rule(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    folder = build_checkpoint({"base": "tiny-chat"}, tmp_path / "ckpt")
    keys = {
        "tokenizer.json": ["model", "added_tokens", "version"],
        "tokenizer_config.json": ["eos_token", "pad_token", "chat_template", "added_tokens_decoder"],
        "generation_config.json": ["eos_token_id", "pad_token_id"],
    }
    (folder / "chat_template.jinja").unlink()
    for file, names in keys.items():
        value = json.loads((folder / file).read_text(encoding="utf-8"))
        text = json.dumps(value | dict.fromkeys(dice.sample(names, dice.randint(0, 2)), "@"))
        (folder / file).write_text(text.replace('"@"', dice.choice(ODD)), encoding="utf-8")
    run_report = run_rules(open_checkpoint(str(folder)), RULES)
    assert not run_report.crashed
