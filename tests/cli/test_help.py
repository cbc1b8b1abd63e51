"""How a stranger finds the way: the help, its examples, completion, and errors that name the command to try next."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ckptcheck.cli.app import GROUPS, NestedCommandGroup, build_app
from ckptcheck.cli.examples import EXAMPLES
from ckptcheck.verbs import VERBS
from tests.factories.command_line import run
from tests.paths import ROOT

WIDTH = 60


def test_the_help_lists_every_command_once() -> None:
    listed = [name for names in NestedCommandGroup.sections.values() for name in names]
    assert sorted(listed) == sorted(
        {words.partition(" ")[0] if words.partition(" ")[0] in GROUPS else words for words in VERBS}
    )


def test_examples_name_commands_and_options_that_exist() -> None:
    assert VERBS.keys() - EXAMPLES.keys() == {"doctor", "engine list"}, "they take nothing"
    command_line = build_app()
    for line in (line for lines in EXAMPLES.values() for line in lines):
        assert len(line) <= WIDTH - 4
        first, *rest = line.split()[1:]
        if first == "help":
            continue
        command = command_line.commands.get(f"{first} {rest[0]}") or command_line.commands[first]
        if hasattr(command, "commands"):
            command = command.commands[rest[0]]
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in rest if word.startswith("-")} <= options


@pytest.mark.parametrize("words", [[], ["scan"], ["refit"], ["refit", "history"], ["parity"], ["engine"]])
def test_the_help_fits_a_narrow_terminal_and_ends_with_examples(here: Path, words: list[str]) -> None:
    shown = run(here, *words, "--help", COLUMNS=str(WIDTH)).stdout
    examples = shown[shown.index("Examples:") :]
    assert max(map(len, examples.splitlines())) <= WIDTH
    assert shown.rstrip().endswith(EXAMPLES[" ".join(words)][-1])
    assert "\033" not in shown


def test_a_number_that_is_none_is_said_in_words(here: Path) -> None:
    assert "Invalid value for '--tp': 'x' is no whole number\n" in run(here, "refit", "sound", "--tp", "x").stderr
    assert "'x' is no number\n" in run(here, "diff", "sound", "sound", "--rtol", "x").stderr


def test_help_is_a_word_too(here: Path) -> None:
    assert run(here, "help").stdout == run(here, "--help").stdout
    assert run(here, "help", "refit", "history").stdout == run(here, "refit", "history", "--help").stdout
    assert run(here, "help", "idx001").stdout == run(here, "rule", "IDX001").stdout


@pytest.mark.parametrize(
    ("words", "next_command"),
    [
        (["idx001"], "ckptcheck rule IDX001 prints the page of that rule"),
        (["sound"], "ckptcheck scan sound checks it"),
        (["hf://org/name"], "ckptcheck scan hf://org/name checks it"),
        (["engine", "install", "vllm"], "ckptcheck engine install vllm-cpu builds one for CPUs"),
        (["engine", "install", "megatorn"], "ckptcheck engine install megatron"),
        (["engine", "remove", "sglang"], "sglang-cpu"),
    ],
)
def test_an_error_ends_with_the_command_to_try_next(here: Path, words: list[str], next_command: str) -> None:
    result = run(here, *words)
    assert (result.returncode, result.stdout) == (2, "")
    assert next_command in result.stderr.splitlines()[-1]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script that pip would write: completion is by its name."""
    script = tmp_path_factory.mktemp("bin") / "ckptcheck"
    script.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom ckptcheck.__main__ import main\nmain()\n",
        encoding="utf-8",
    )
    script.chmod(0o755)
    return script


COMPLETIONS = [
    ("ckptcheck sca", "scan"),
    ("ckptcheck parity jud", "judge"),
    ("ckptcheck scan --headers", "--headers-only"),
    ("ckptcheck refit lora --upd", "--update"),
]


def _complete(program: Path, **variables: str) -> str:
    environment = {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}", **variables}
    result = subprocess.run([str(program)], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("typed", "offered"), COMPLETIONS)
def test_every_shell_is_offered_the_word(program: Path, typed: str, offered: str) -> None:
    words = typed.split()
    for shell in ("bash", "zsh", "fish"):
        place = words[-1] if shell == "fish" else str(len(words) - 1)
        shown = _complete(program, _CKPTCHECK_COMPLETE=f"{shell}_complete", COMP_WORDS=typed, COMP_CWORD=place)
        assert offered in re.split(r"[\s,]", shown)


SHELLS = {
    "bash": 'source {file}; COMP_WORDS=(ckptcheck sca); COMP_CWORD=1; _ckptcheck_completion ckptcheck; echo "${{COMPREPLY[@]}}"',
    "zsh": "autoload -Uz compinit; compinit -u; source {file}; echo $_comps[ckptcheck]; [[ -n $_comps[ckptcheck] ]] && echo scan",
    "fish": "source {file}; complete --do-complete 'ckptcheck sca'",
}


@pytest.mark.parametrize("shell", SHELLS)
def test_the_installed_script_completes(program: Path, tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    script = tmp_path / "completion"
    script.write_text(_complete(program, _CKPTCHECK_COMPLETE=f"{shell}_source"), encoding="utf-8")
    shown = subprocess.run(
        [shell, "-c", SHELLS[shell].format(file=script)],
        env={**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "scan" in shown.stdout.split() or "scan\t" in shown.stdout, shown.stderr


def test_completion_is_installed_for_the_shell_that_asks(program: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path)}
    (tmp_path / ".bashrc").write_text("alias mine=ls", encoding="utf-8")

    def call(option: str) -> str:
        # two commands: a shell that runs one alone is replaced by it, and nobody asks then
        command = ["bash", "-c", f"ckptcheck {option}; echo $?"]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert result.stdout.splitlines()[-1] == "0", result.stderr
        return result.stdout.removesuffix("0\n")

    for _ in range(2):
        call("--install-completion")
    script = (tmp_path / ".bash_completions/ckptcheck.sh").read_text(encoding="utf-8")
    assert script == call("--show-completion")
    assert "_CKPTCHECK_COMPLETE=bash_complete" in script
    line = "source ~/.bash_completions/ckptcheck.sh"
    assert (tmp_path / ".bashrc").read_text(encoding="utf-8") == f"alias mine=ls\n{line}\n"


def test_a_shell_without_completion_is_named(program: Path) -> None:
    environment = {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    command = ["sh", "-c", "ckptcheck --show-completion; echo $?"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if "sh" not in result.stderr:
        pytest.skip("sh is bash here")
    assert result.stderr == "ckptcheck: there is completion for bash, zsh, fish, not for sh\n"
    assert result.stdout == "2\n"
