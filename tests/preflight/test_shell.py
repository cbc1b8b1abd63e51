"""Launch scripts are read and never run: what they set, what they start, and what nobody can tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.preflight.shell_script import Script, Word, read


def script(text: str, folder: Path = Path("/jobs"), found: list[Word] | None = None) -> Script:
    return read(text, "run.sh", folder, follow=lambda word, _: found.append(word) if found is not None else None)


def last(text: str) -> list[str]:
    """The words of the last command; <…> where a part is not known."""
    return [word.text if not word.reason else f"<{word.reason}>" for word in script(text).commands[-1]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A=1\nrun $A ${A} \"x $A\" '$A' \\$A", ["run", "1", "1", "x 1", "$A", "$A"]),
        ("A=(one 'two three' # a comment\n  four)\nrun ${A[@]}", ["run", "one", "two", "three", "four"]),
        ("A=(one 'two three')\nrun \"${A[@]}\"", ["run", "one", "two three"]),
        ('A=(a)\nA+=(b)\nB=x; B+=y\nrun "${A[@]}" $B', ["run", "a", "b", "xy"]),
        ('A=""\nrun ${A:-new} ${A-old} ${B:-"a b"} ${C:-${D:-deep}}', ["run", "new", "a", "b", "deep"]),
        ("run --x \\\n  1 \\\n  --y=2 # the end", ["run", "--x", "1", "--y=2"]),
        ("A='x y'\nrun --flag=$A-z \"--flag=$A\"", ["run", "--flag=x", "y-z", "--flag=x y"]),
        ("cat <<EOF > /dev/null\nnot 'closed\nEOF\nrun 1 2>&1 > log && true || run 2", ["run", "2"]),
        ("A=$((1024 * 2)); B=$(((A + 1) / 2 - -1))\nrun $B $((A % 1000))", ["run", "1025", "48"]),
        ("(cd x && run 1)", ["run", "1"]),
        ("{ run 1; }", ["run", "1"]),
        ('run ""', ["run", ""]),
        ("run a#b $", ["run", "a#b", "$"]),
    ],
)
def test_words_are_those_that_a_shell_would_pass(text: str, words: list[str]) -> None:
    assert last(text) == words


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("A=$(nvidia-smi | wc -l)\nrun $A", "$(nvidia-smi | wc -l) is known only when the script runs"),
        ("A=`date`\nrun $A", "$(date) is known only when the script runs"),
        ("run ${A%%.*}", "${A%%.*} is known only when the script runs"),
        ("run $((A + 1))", "$((A + 1)) is known only when the script runs"),
        ("run $((2 ** 70))", "$((2 ** 70)) is known only when the script runs"),
        ("run $UNSET", "${UNSET} is not set in the script"),
        ("if [ -n \"$X\" ]; then\n  A=1\nelse\n  A=2\nfi\nrun $A", "set under a condition"),
        ("case $X in\n  a) A=1 ;;\n  b) A=2 ;;\nesac\nrun $A", "set under a condition"),
        ("for i in 1 2; do A=1; done\nrun $A", "set under a condition"),
        ("setup() {\n  A=1\n}\nrun $A", "set under a condition"),
        ("run $@", "${@} is known only when the script runs"),
    ],
)  # fmt: skip
def test_what_nobody_can_tell_says_why(text: str, reason: str) -> None:
    assert last(text) == ["run", f"<{reason}>"]


def test_a_word_has_the_line_where_it_was_written() -> None:
    found = script("ARGS=(\n   --one 1\n   --two 2\n)\n\nrun \\\n  first \\\n  ${ARGS[@]}\n")
    assert [(word.text, word.line) for word in found.commands[-1]] == [
        ("run", 6), ("first", 7), ("--one", 2), ("1", 2), ("--two", 3), ("2", 3),
    ]  # fmt: skip


def test_exports_are_kept_apart() -> None:
    found = script("A=1\nexport B=2 C\nexport A\nD=4 run\nE=5\n")
    assert {name: word.text for name, word in found.exports.items()} == {"B": "2", "A": "1", "D": "4"}


def test_the_folder_of_the_script_is_known() -> None:
    found: list[Word] = []
    script(
        'DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"\nsource "${DIR}/a.sh"\n. ./b.sh',
        found=found,
    )
    assert [word.text for word in found] == ["/jobs/a.sh", "./b.sh"]


def test_a_file_that_is_sourced_only_if_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "here.sh").touch()
    found: list[Word] = []
    script(
        f"[ -f {tmp_path}/here.sh ] && source {tmp_path}/here.sh\n[ -f {tmp_path}/no.sh ] && source {tmp_path}/no.sh",
        found=found,
    )
    assert [word.text for word in found] == [f"{tmp_path}/here.sh"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a\nrun 'x", "run.sh:2 a ' is never closed"),
        ('a\nb\nrun "x', 'run.sh:3 a " is never closed'),
        ("A=(\n 1", "run.sh:1 an array's ( is never closed"),
        ("run ${A", "run.sh:1 a { is never closed"),
        ("run $(a", "run.sh:1 a ( is never closed"),
        ("run `a", "run.sh:1 a ` is never closed"),
    ],
)
def test_what_is_never_closed_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(CkptcheckError) as trouble:
        script(text)
    assert trouble.value.message == sentence


def test_variables_that_double_themselves_are_refused() -> None:
    text = "A=xxxxxxxxxx\n" + "A=$A$A\n" * 60
    with pytest.raises(CkptcheckError, match=r"run.sh:\d+ its variables grow beyond"):
        script(text)
