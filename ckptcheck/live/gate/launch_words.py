"""Finds the command that starts a job, and gives it the words of one step."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

BEFORE = ("exec", "env", "nohup", "time", "command")
"""Words of a shell that may come before a command, which then runs with the words that follow."""
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
FUNCTION = re.compile(r"[\w./+-]+", re.ASCII)
"""A word that Bash takes as the name of a function."""
SHELL_FILE = """\
# ckptcheck gate --first-step wrote this. Bash reads it before a script: the command that starts the job gets the words of one step.
[ -z "${CKPTCHECK_BASH_ENV:-}" ] || . "$CKPTCHECK_BASH_ENV"
ckptcheck_first_step() {
  local place
  for ((place = 2; place <= $#; place++)); do
    case ${!place} in (%(program)s|*/%(program)s)
      set -- "${@:1:place - 1}" %(before)s "${@:place}" %(words)s
      : > %(mark)s
      break ;;
    esac
  done
  builtin command "$@"
}
"""
RUN_FUNCTION = 'function %(name)s { ckptcheck_first_step %(name)s "$@"; }\n'
EXEC_FUNCTION = 'function exec { (( ! $# )) || { ckptcheck_first_step "$@"; exit; }; builtin exec; }\n'
COMMAND_FUNCTION = 'function command { ckptcheck_first_step "$@"; }\n'
OWN_FUNCTIONS = {"exec": EXEC_FUNCTION, "command": COMMAND_FUNCTION, "time": ""}


def find_program(launch: Sequence[str]) -> str:
    """Return the word of a launch line that names what runs: a Python file, a module after -m, or the word after the first.

    >>> find_program(["python3", "-m", "verl.trainer.main_ppo", "a.b=c"]), find_program(["accelerate", "launch", "a/train.py"])
    ('verl.trainer.main_ppo', 'train.py')
    >>> find_program(["trl", "grpo", "--config", "grpo.yaml"])
    'grpo'
    """
    for word, following in zip(launch, [*launch[1:], ""], strict=True):
        if word.endswith(".py"):
            return word.rpartition("/")[2]
        if word == "-m" and following:
            return following
    return launch[1] if len(launch) > 1 else ""


def write_shell_file(launch: Sequence[str], words: Sequence[str], mark: str, before: Sequence[str] = ()) -> str:
    """Return a file for BASH_ENV that adds words to the command which starts the job, whatever else its script does.

    Args:
        launch: the words of that command, as far as they are known without running the script.
        words: what comes after its last word.
        mark: the file that is made where the words were added.
        before: what comes before the word that names what runs.

    Returns "" where the command's program is not known.
    """
    program = find_program(launch)
    names = []
    for word in launch:
        if ASSIGNMENT.match(word):
            continue
        names.append(word)
        if word not in BEFORE:
            break
    if not program or not names or not all(FUNCTION.fullmatch(name) for name in names):
        return ""
    values = {
        "program": shlex.quote(program),
        "before": shlex.join(before),
        "words": shlex.join(words),
        "mark": shlex.quote(mark),
    }
    functions = [OWN_FUNCTIONS.get(name, RUN_FUNCTION) % {"name": name} for name in dict.fromkeys(names)]
    return SHELL_FILE % values + "".join(functions)
