"""Launch scripts are read and never run: what they set, what they start, and what nobody can tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs.shell.script import Script, Word, read


def script(text: str, folder: Path = Path("/jobs"), found: list[Word] | None = None) -> Script:
    return read(text, "run.sh", folder, follow=lambda word, _: found is None or not found.append(word))


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
        ("run 'a'\\\n  \"b\"\\\n--c", ["run", "a", "b--c"]),
        ('run ${1:-x} ${2-} $@ "$@" ${A:=y} $A ${A:+z} $#', ["run", "x", "y", "y", "z", "0"]),
        ("set -- p 'q r'\nrun $1 \"$@\"", ["run", "p", "p", "q r"]),
        (
            'LINE=\'--a 1 --b 2\'\nread -ra A <<< "${LINE}"\nrun "${A[@]}" ${#A[@]}',
            ["run", "--a", "1", "--b", "2", "4"],
        ),
        ("IFS=',' read -r -a A <<< 'a,b'\nrun ${A[0]}", ["run", "a"]),
        (
            "P=org/Qwen3-8B.sh\nrun ${P##*/} ${P%.sh} ${P//\\//_} ${P,,}",
            ["run", "Qwen3-8B.sh", "org/Qwen3-8B", "org_Qwen3-8B.sh", "org/qwen3-8b.sh"],
        ),
        (
            "N=$(basename $0 .sh)\nR=$(realpath $(dirname $0)/../..)\nrun $N $R $(cd /a/b/.. && pwd) $(echo x y)",
            ["run", "run", "/", "/a", "x", "y"],
        ),
        ('A=fp8\nif [ "$A" = fp8 ]; then B=1; else B=2; fi\nrun $B', ["run", "1"]),
        ('A=8\nif [[ $A -gt 8 && -z $X ]]; then B=1; elif [ -n "$X" ]; then B=2; else B=3; fi\nrun $B', ["run", "3"]),
        ('A=b\ncase "$A" in a|c) B=1 ;; b*) B=2\n;; *) B=3;; esac\nrun $B', ["run", "2"]),
        ('[ -z "$X" ] && X=5\n[ "$X" = 5 ] || X=6\nrun $X', ["run", "5"]),
        ("while [[ $# -gt 0 ]]; do case $1 in -m) M=$2; shift 2;; esac; done\nrun ${M:-d}", ["run", "d"]),
        ('go() {\n  local n=$1\n  run $n "${@:2}"\n}\ngo 4', ["run", "4"]),
        ("function go {\n  run $1\n}\ngo 4", ["run", "4"]),
        ("for m in only; do run $m; done", ["run", "only"]),
        ('run ${NEVER[@]} "${SET[@]}"', ["run"]),
        ('A=(1)\nif [ -z "$X" ]; then A+=(2); fi\nrun ${A[@]}', ["run", "1", "2"]),
        ("f() {\n case $1 in\n a) A=1;;\n esac\n run $A\n}\nf a", ["run", "1"]),
    ],
)
def test_words_are_those_that_a_shell_would_pass(text: str, words: list[str]) -> None:
    assert last(text) == words


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("A=$(nvidia-smi | wc -l)\nrun $A", "$(nvidia-smi | wc -l) is known only when the script runs"),
        ("A=`date`\nrun $A", "$(date) is known only when the script runs"),
        ("run ${A%%.*}", "${A%%.*} is not set in the script"),
        ("A=(a b)\nrun ${A[@]%%.*}", "${A[@]%%.*} is known only when the script runs"),
        ("run $((A + 1))", "$((A + 1)) is known only when the script runs"),
        ("run $((2 ** 70))", "$((2 ** 70)) is known only when the script runs"),
        ("run $UNSET", "${UNSET} is not set in the script"),
        ("if grep -q x y; then\n  A=1\nelse\n  A=2\nfi\nrun $A", "set under a condition"),
        ("A=1\nif [ -d /data ]; then A=2; fi\nrun $A", "set under a condition"),
        ("case $(uname) in\n  a) A=1 ;;\n  b) A=2 ;;\nesac\nrun $A", "set under a condition"),
        ("for i in 1 2; do A=1; done\nrun $A", "set under a condition"),
        ("for i in 1 2; do run $i; done", "i has another value in each turn of a loop"),
        ("setup() {\n  A=1\n}\nrun $A", "${A} is not set in the script"),
        ("run $1", "${1} is not set in the script"),
        ("mapfile -t A < <(scontrol show hostnames)\nrun ${A[@]}", "mapfile gets it only when the script runs"),
    ],
)  # fmt: skip
def test_what_nobody_can_tell_says_why(text: str, reason: str) -> None:
    assert last(text) == ["run", f"<{reason}>"]


def test_a_word_has_the_line_where_it_was_written() -> None:
    found = script("ARGS=(\n   --one 1\n   --two 2\n)\n\nrun \\\n  first \\\n  ${ARGS[@]}\n")
    assert [(word.text, word.line) for word in found.commands[-1]] == [
        ("run", 6), ("first", 7), ("--one", 2), ("1", 2), ("--two", 3), ("2", 3),
    ]  # fmt: skip


@pytest.mark.parametrize("passed", ['"$@"', '"${ARGS[@]}"', "$@", "$*"])
def test_a_single_word_of_a_list_keeps_its_line_too(passed: str) -> None:
    found = script(f'set -- \\\n --one=1\nARGS=("$@")\nrun {passed}')
    assert [(word.text, word.line) for word in found.commands[-1]] == [("run", 4), ("--one=1", 2)]


def test_a_sourced_script_has_its_own_arguments() -> None:
    seen: list[list[str]] = []
    found = read(
        "set -- a b\nsource x.sh c d\nsource y.sh\nrun \"$@\"", "run.sh", Path("/jobs"),
        follow=lambda _, inner: seen.append([word.text for word in inner.arguments]) is None,
    )  # fmt: skip
    assert seen == [["c", "d"], ["a", "b"]]
    assert [word.text for word in found.commands[-1]] == ["run", "a", "b"]


@pytest.mark.parametrize("given", [{"M": "x"}, {"M": "x", "1": "y"}])
def test_variables_that_the_user_gives_are_known(given: dict[str, str]) -> None:
    found = read("run ${M:-d} ${1:-z}", "run.sh", Path("/jobs"), follow=lambda *_: True, into=Script(given=given))
    assert [word.text for word in found.commands[-1]] == ["run", "x", given.get("1", "z")]


def test_a_here_document_belongs_to_its_command() -> None:
    found = script("cat <<'END' > job.sh | tee x\nrun 'not closed\nEND\nsbatch <<-EOF\n\trun $A\n\tEOF\nafter")
    assert [(command[0].text, command.document, command.document_line) for command in found.commands] == [
        ("cat", "run 'not closed", 2), ("tee", "", 0), ("sbatch", "\trun $A", 5), ("after", "", 0),
    ]  # fmt: skip


def test_a_command_knows_how_its_line_ends() -> None:
    found = script("run --a 1 \\\n  --b 2 \\ \n  --c 3 \\\n  # off\n  --d 4\n")
    assert [(command[0].text, command.end, command.last_line) for command in found.commands] == [
        ("run", 2, "  --b 2 \\ "), ("--c", 4, "  # off"), ("--d", 5, "  --d 4"),
    ]  # fmt: skip


def test_marks_stand_for_what_is_not_known() -> None:
    (word,) = script('A=\'{"a": "\'$X\'", "b": 1}\'\nrun "$A"').commands[-1][1:]
    assert word.with_marks == '{"a": "\ufffc", "b": 1}'


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
