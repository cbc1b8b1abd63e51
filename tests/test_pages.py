"""What the pages of docs/ and the README show: Python runs, commands and options exist, figures are the measured ones.

Python runs page by page, as a reader would type it, in a folder with the files that the pages name. What needs an engine, a trainer
or something that the page does not define is compiled, and what it takes from ckptcheck is looked up.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import inspect
import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import ckptcheck
from ckptcheck.cli.app import build_app
from ckptcheck.cli.verb_command import load_verb
from ckptcheck.rollouts import write_rollouts
from ckptcheck.verbs import FURTHER, VERBS
from tests.benchmarks import figures
from tests.doubles.one_step_job import FORMS
from tests.factories import signatures
from tests.factories.checkpoint_cases import CHECKPOINTS
from tests.factories.history_cases import build_history
from tests.factories.rollout_cases import draw_rollouts
from tests.paths import ROOT

PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
BLOCK = re.compile(r"^( *)```(\w+)\n(.+?)\n\1```", re.MULTILINE | re.DOTALL)
ELSEWHERE = re.compile(
    r"s3://|https?://|ray://|\b(?:attach|calibrate_floor|localize|lora|refit|score_rollouts|record_rollouts)\("
)
"""Calls that need an engine, a trainer, a cluster or the network."""
RULE = re.compile(r'@rule\(\s*"(\w+)",\s*"([\w-]+)"')
MOST_PAGES = 25
"""A page answers a task. Evidence that a run generates is no page."""


def _list_blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a language, without their indentation."""
    return [re.sub(rf"(?m)^{match[1]}", "", match[3]) for match in BLOCK.finditer(text) if match[2] == language]


WITH_PYTHON = [name for name, text in PAGES.items() if _list_blocks(text, "python")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the pages name."""
    for name in ("my-model", "exported-model", "broken-model", "step_100"):
        shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", tmp_path / name)
    (tmp_path / "broken-model/model-00002-of-00003.safetensors").unlink()
    for step in (10, 20):
        shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", tmp_path / f"run/checkpoint-{step}")
    job = "actor_rollout_ref:\n  model: {path: elsewhere}\n  rollout: {name: vllm}\n"
    (tmp_path / "job.yaml").write_text(job, encoding="utf-8")
    write_rollouts(draw_rollouts(noise=0.001), tmp_path / "rollouts.safetensors")
    build_history({"syncs": [{"step": step, "version": str(step)} for step in range(3)]}, tmp_path / "syncs.jsonl")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_the_python_of_a_page_runs(page: str, folder: Path) -> None:
    names: dict[str, Any] = {"ckptcheck": ckptcheck}
    for block in _list_blocks(PAGES[page], "python"):
        tree = ast.parse(block, page)
        _look_up(tree)
        if name := RULE.search(block):
            _run_rule(block, name, folder)
        elif not ELSEWHERE.search(block) and _is_installed(tree) and not _find_undefined(tree, names):
            exec(compile(tree, page, "exec"), names)


def test_the_notebook_has_every_verb_and_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = json.loads((ROOT / "docs/notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    answer = {"meta_info": {"output_token_logprobs": [[-1.0, 7, None]]}, "prompt_token_ids": [5]}
    (folder / "dump.json").write_text(json.dumps(answer), encoding="utf-8")
    signatures.write_key(folder, "release")
    index = folder / "step_100/model.safetensors.index.json"
    index.write_text(
        index.read_text(encoding="utf-8").replace('"total_size": 8032', '"total_size": 1'), encoding="utf-8"
    )
    printed = "".join(FORMS["verl"].format(step=step, loss=0.1, norm=3e9, k3=5e-7) + "\n" for step in range(3))
    (folder / "train.log").write_text(printed, encoding="utf-8")
    names: dict[str, Any] = {}
    called: set[str] = set()
    value_of: dict[str, Any] = {}
    for cell in cells:
        tree = ast.parse("".join(cell["source"])) if cell["cell_type"] == "code" else ast.Module([], [])
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("ckptcheck."):
                called.add(ast.unparse(node.func).removeprefix("ckptcheck."))
                verb = getattr(ckptcheck, ast.unparse(node.func).removeprefix("ckptcheck."))
                inspect.signature(verb).bind(*node.args, **{str(each.arg): each.value for each in node.keywords})
        if not tree.body or cell["metadata"].get("tags") == ["engine"]:
            continue
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "docs/notebook.ipynb", "exec"), names)
        value: Any = eval(ast.unparse(last), names) if last is not None else None
        value_of[ast.unparse(last) if last is not None else ""] = value
        if hasattr(value, "verdict"):
            assert value.verdict != "incomplete", value
            assert value.target.split()[0] in value._repr_html_()
    exported = {load_verb(words).name for words in VERBS} & {*ckptcheck.__all__} | {*FURTHER}
    assert exported - called == {"rule"}, "it declares one"
    shown = capsys.readouterr().out
    assert "error IDX001 model-00002-of-00003.safetensors is missing" in shown
    assert '+    "total_size": 8032' in shown, "preview_repairs"
    assert "3 syncs · steps 0–2" in shown, "follow_history"
    assert [finding.code for finding in value_of["ckptcheck.history('train.log')"].findings] == ["HIS032"]


def _run_rule(block: str, name: re.Match[str], folder: Path) -> None:
    """Check a sound checkpoint by a rule that a page shows."""
    (folder / "our_rules").mkdir()
    path = folder / f"our_rules/{name[1].lower()}_{name[2].replace('-', '_')}.py"
    path.write_text(block, encoding="utf-8")
    report = ckptcheck.scan("my-model", rules=["our_rules"], select=[name[1]])
    assert not report.crashed
    assert {finding.code for finding in report.findings} <= {name[1]}


def _look_up(tree: ast.Module) -> None:
    """Look up whatever a block takes from ckptcheck."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "ckptcheck":
            assert node.module is not None
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name) or importlib.util.find_spec(f"{node.module}.{alias.name}"), (
                    alias.name
                )
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "ckptcheck":
                    importlib.import_module(alias.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ckptcheck":
            assert hasattr(ckptcheck, node.attr) or importlib.util.find_spec(f"ckptcheck.{node.attr}"), node.attr


def _is_installed(tree: ast.Module) -> bool:
    """Whether a block imports ckptcheck, what it needs, and the standard library alone."""
    modules = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else []
        )
    }
    return modules <= {*sys.stdlib_module_names, "ckptcheck", "numpy"}


def _find_undefined(tree: ast.Module, names: dict[str, Any]) -> set[str]:
    """Return the names that a block reads, and that neither it nor an earlier block defines."""
    bound = {*names, *dir(builtins), "__file__"}
    read: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    return read - bound


def _list_commands(text: str) -> Iterator[list[str]]:
    """Yield the words behind `ckptcheck` of every command in a block of a console or a shell."""
    for language in ("console", "bash", "sh"):
        for block in _list_blocks(text, language):
            lines = re.sub(r"\\\n\s*", " ", block).splitlines()
            for line in lines if language != "console" else [line[2:] for line in lines if line.startswith("$ ")]:
                yield from _split(line)


def _split(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&<>()")
    lexer.whitespace_split = True
    command: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set(";|&<>()"):
            if "ckptcheck" in command:
                yield command[command.index("ckptcheck") + 1 :]
            command = [] if word != ">" else ["output"]
        else:
            command.append(word)


COMMANDS = [(page, command) for page, text in PAGES.items() for command in _list_commands(text)]


@functools.cache
def _get_program() -> Any:
    return build_app()


@pytest.mark.parametrize(
    ("page", "command"), COMMANDS, ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
def test_a_command_is_one_that_the_program_takes(page: str, command: list[str]) -> None:
    mistake = find_mistake(command)
    own = re.search(r"'(\w+)' is not one of", mistake)
    if own and any(f'"{own[1]}"' in block for block in _list_blocks(PAGES[page], "python")):
        return  # the page adds it
    assert mistake == ""


def find_mistake(words: list[str]) -> str:
    """Return what the command line would refuse: a command, an option, a choice, an argument too many or too few."""
    command, words = find_command(words)
    if hasattr(command, "commands"):
        return "" if words in (["--version"], ["--help"], []) else f"no command: {words}"
    if words == ["--help"]:
        return ""
    try:
        command.make_context("ckptcheck", words)
    except click.ClickException as error:
        return error.format_message()
    return ""


def find_command(words: list[str]) -> tuple[Any, list[str]]:
    """Return the command that words begin with, and the words behind it."""
    command = _get_program()
    while hasattr(command, "commands"):
        number = next((number for number in (2, 1) if " ".join(words[:number]) in command.commands), 0)
        if not number:
            break
        command, words = command.commands[" ".join(words[:number])], words[number:]
    return command, words


def test_a_mistake_is_found() -> None:
    assert find_mistake(["scan", "x", "--no-such-option"])
    assert find_mistake(["scan", "x", "--format", "no-such-format"])
    assert find_mistake(["no-such-command"])
    assert find_mistake(["verify", "a", "b", "c"])
    assert not find_mistake(["scan", "x", "--format", "json"])


@pytest.mark.parametrize("page", PAGES)
def test_an_option_named_in_a_sentence_is_there(page: str) -> None:
    for words in re.findall(r"`ckptcheck ([a-z][^`]*)`", BLOCK.sub("", PAGES[page])):
        command, rest = find_command(words.split())
        assert command is not _get_program(), words
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert {word for word in rest if word.startswith("--")} <= {*known, "--help"}, words


@pytest.mark.parametrize("page", PAGES)
def test_the_files_that_a_page_links_to_exist(page: str) -> None:
    for link in re.findall(r"\]\((?!http|#)([^)#]+)", PAGES[page]):
        assert (ROOT / page).parent.joinpath(link).exists(), link


def test_the_measured_figures_are_the_ones_shown() -> None:
    kept = figures.read_kept()
    values = kept["values"]
    headers = kept["headers"]["scan / huggingface_hub.get_local_safetensors_metadata"]
    shown = {
        f"in {headers} × the time that `huggingface_hub": "README.md",
        f"| {headers} × what `huggingface_hub": "docs/limits.md",
        f"| {values['the workers, seconds a GB']} s a GB, {values['all else of the scan, seconds']} s for": "docs/limits.md",
        f"| {values['mixture of 20,439 tensors, seconds']} s |": "docs/limits.md",
        f"| {kept['identity']['manifest / xxh3-128 of the files']} × what xxh3-128 of the files takes; "
        f"{kept['identity']['manifest / xxh3-128, each without its start']} × without": "docs/limits.md",
        f"| {kept['identity']['identity / xxh3-128 of the files']} × what xxh3-128": "docs/limits.md",
        f"| {kept['diff']['diff / cmp of the same files']} × what `cmp` takes |": "docs/limits.md",
    }
    for sentence, page in shown.items():
        assert sentence in PAGES[page]
    assert not [
        name for name, page in PAGES.items() if re.search(r"read at [\d.]+ GB/s|[\d.]+ GB of\s+values a second", page)
    ]


def test_a_benchmark_keeps_what_it_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "KEPT", tmp_path / "figures.json")
    monkeypatch.setattr(figures, "measured", {})
    for found in ("1.2", "1.3"):
        figures.line("speed", found, "")
        figures.keep("one")
    figures.line("memory", "9", "")
    figures.keep("other")
    assert figures.read_kept() == {"one": {"speed": "1.3"}, "other": {"memory": "9"}}


def test_the_guides_are_few() -> None:
    assert len([name for name in PAGES if name.startswith("docs/")]) <= MOST_PAGES
