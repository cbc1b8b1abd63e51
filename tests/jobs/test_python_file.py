"""Python scripts are read and never run: the calls that they make, with those arguments that are constants."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs.python_source.evaluator import PythonScript, read_python_file
from ckptcheck.jobs.python_source.python_job import find_modules_beside
from ckptcheck.jobs.python_source.values import Text, to_plain


def read(text: str, **options: object) -> PythonScript:
    return read_python_file(textwrap.dedent(text), "run.py", **options)  # type: ignore[arg-type]


def shown(text: str) -> object:
    """What ``use(value)`` is called with: the value, or <why it is not known>."""
    call = next(
        call for call in read("from engine import use, opaque\n" + textwrap.dedent(text)).calls if call.ends_with("use")
    )
    value = call.arguments[0]
    if isinstance(value, Text):
        return "".join(f"<{piece.text}|{piece.reason}>" if piece.reason else piece.text for piece in value.pieces)
    plain, reason = to_plain(value)
    return f"<{reason}>" if reason else plain


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("use('a' 'b' + 'c')", "abc"),
        ("N = 4\nuse(f'--tp {N * 2} {N / 8} {\"x\" if N > 2 else \"y\"}')", "--tp 8 0.5 x"),
        ("A = ['--a', 1]\nA += ['--b']\nA.extend(('c', 'd'))\nA.append(2)\nuse([*A, 'e'])", ["--a", 1, "--b", "c", "d", 2, "e"]),
        ("A = {'x': 1, **{'y': 2}}\nA['z'] = 3\nA.update(x=4)\nuse({**A, 'w': A['x']})", {"x": 4, "y": 2, "z": 3, "w": 4}),
        ("def f(a, b=2, *, c=3):\n    return a + b + c\nuse(f(1, c=10))", 13),
        ("use(' '.join(f'--{k}={v}' for k, v in {'a': 1, 'b': None}.items()))", "--a=1 --b=None"),
        ("import os\nuse(os.environ.get('X', 'd') + (os.getenv('Y') or 'e'))", "de"),
        ("import os\nuse('on' if os.environ.get('WANDB_KEY') else 'off')", "off"),
        ("import os\nos.environ.setdefault('X', 'd')\nuse(os.environ['X'])", "d"),
        ("import os\nuse(os.path.join('/a', 'b'))", "/a/b"),
        ("from pathlib import Path\nuse(f'{Path(\"/a/b/c.py\").parent / \"d\"}')", "/a/b/d"),
        ("x = 0\nfor i in range(4):\n    if i == 2:\n        break\n    x += i + 1\nuse(x)", 3),
        ("m = 'H100'\nmatch (m, 1):\n    case ('B200' | 'H100', 1):\n        use('yes')\n    case _:\n        use('no')", "yes"),
        ("if False:\n    A = 1\nelif 1 in (1, 2):\n    A = 2\nelse:\n    raise ValueError\nuse(A)", 2),
        ("class C:\n    size = 4\n    def __init__(self, n):\n        self.n = n * self.size\nuse(C(3).n)", 12),
        ("try:\n    A = 1\nexcept ImportError:\n    A = 2\nuse(A)", 1),
        ("import json\nuse(json.dumps({'a': [1, True]}))", '{"a": [1, true]}'),
        ("use('--{} {}'.strip())", "--{} {}"),
        ("A = 2 ** 10\nuse(max(A, 5) // 3 % 100)", 41),
    ],
)  # fmt: skip
def test_what_is_constant_is_known(text: str, value: object) -> None:
    assert shown(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("use(opaque())", "<engine.opaque(…) is known only when the script runs>"),
        ("import os\nuse(os.environ['X'])", "<the environment variable X is not set in the script>"),
        ("use(f'--a 1 --b {opaque()} --c 2')", "--a 1 --b <|engine.opaque(…) is known only when the script runs> --c 2"),
        ("A = '--a 1 '\nif opaque():\n    A += '--b 2 '\nuse(A)", "--a 1 <--b 2 |set under a condition: opaque(…)>"),
        ("A = 1\nif opaque():\n    A = 2\nuse(A)", "<set under a condition: opaque(…)>"),
        ("A = 1\nif opaque():\n    A = 2\nelse:\n    A = 2\nuse(A)", 2),
        ("if opaque():\n    A = 1\nelse:\n    raise ValueError\nuse(A)", 1),
        ("for x in opaque():\n    A = x\nuse(A)", "<set in a loop over opaque(…)>"),
        ("use(10 ** 10 ** 10)", "<it is known only when the script runs>"),
        ("use('x' * 10 ** 9)", "<it is known only when the script runs>"),
        ("use(f'{1:9999999999}')", "<|1 is known only when the script runs>"),
        ("def f():\n    return f()\nuse(f())", "<its functions call each other too deeply>"),
        ("import re\nuse(re.search('(a+)+(b+)+$', 'a'))", "<re.search(…) is known only when the script runs>"),
    ],
)  # fmt: skip
def test_what_is_not_constant_says_why(text: str, value: str) -> None:
    assert shown(text) == value


def test_keywords_of_an_imported_class_are_a_document() -> None:
    script = read(
        """
        from trl import GRPOConfig as Config
        from dataclasses import dataclass

        LENGTHS = dict(max_completion_length=512)

        def main():
            args = Config(
                beta=0.04,
                vllm_mode="colocate",
                model_init_kwargs={"dtype": "bfloat16"},
                **LENGTHS,
            )
            args.temperature = 0.7

        if __name__ == "__main__":
            main()
        """
    )
    (call,) = [call for call in script.calls if call.ends_with("GRPOConfig")]
    assert (call.name, call.condition) == ("trl.GRPOConfig", "")
    leaves = call.to_document().leaves
    assert {path: (leaf.value, leaf.line) for path, leaf in leaves.items()} == {
        "beta": (0.04, 9),
        "vllm_mode": ("colocate", 10),
        "model_init_kwargs.dtype": ("bfloat16", 11),
        "max_completion_length": (512, 8),
        "temperature": (0.7, 8),
    }


DATACLASS = """
@dataclass
class Arguments:
    n: int = 4
    m: int = field(default=1)

    def __post_init__(self):
        self.n = self.n * 2

def main(arguments: Arguments):
    use(arguments.n)

typer.run(main)
"""
TYPER = """
app = typer.Typer()

@app.command()
def train(n: int = 8):
    use(n)

if __name__ == "__main__":
    app()
"""
ARGPARSE = """
parser = argparse.ArgumentParser()
group = parser.add_argument_group("x")
group.add_argument("--num-gpus", "-n", type=int, default=8)
use(parser.parse_args().num_gpus)
"""


@pytest.mark.parametrize("text", [DATACLASS, TYPER, ARGPARSE])
def test_options_of_the_script_have_their_defaults(text: str) -> None:
    script = read("import argparse, typer\nfrom dataclasses import dataclass, field\nfrom engine import use\n" + text)
    (call,) = [call for call in script.calls if call.ends_with("use")]
    assert call.arguments == (8,)


def test_words_of_a_long_text_have_their_lines() -> None:
    script = read('use(\n    "--a 1 "\n    # "--b 9 "\n    "--b 2 "\n    f"--c {3} "\n    "--d"\n)\n')
    (call,) = script.calls
    text = call.arguments[0]
    assert isinstance(text, Text)
    assert [(piece.text, piece.line) for piece in text.pieces] == [
        ("--a 1 ", 2), ("--b 2 ", 4), ("--c ", 5), ("3", 5), (" --d", 6),
    ]  # fmt: skip


def test_modules_beside_the_script_are_read(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/common.py").write_text("SIZES = {'a': 8}\ndef double(x):\n    return x * 2\nraise SystemExit\n")
    find = find_modules_beside(tmp_path, lambda path: path.name, lambda path: path.read_text())
    script = read("from shared.common import double\nimport shared.common as C\nuse(double(C.SIZES['a']))", find=find)
    assert script.calls[-1].arguments == (16,)


def test_functions_that_nothing_calls_come_last_and_say_so() -> None:
    script = read("def f(x):\n    use(x)\ndef g():\n    use(2)\ng()")
    assert [(call.line, call.condition) for call in script.calls] == [
        (4, ""), (2, "in a function that the script itself does not call"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text", ["while True:\n    pass\n", "for i in range(1000):\n  for j in range(1000):\n    k = i * j\n"]
)
def test_a_script_that_runs_for_ever_is_not(text: str) -> None:
    assert len(read(text + "use(1)").notes) <= 1


def test_values_that_double_themselves_stay_small() -> None:
    doubling = "A = A + A\n" * 60
    nested = "A = [A] * 100\n" * 60
    dicts = "A = {'a': A, 'b': A}\n" * 60
    for text in ("A = [1]\n" + doubling, "A = [1]\n" + "A += A\n" * 60, "A = 'x'\n" + doubling, nested, dicts):
        script = read(f"A = 1\n{text}use(A, a=A)\nB = str(A)\nC = A == A\nD = len(A)\n")
        call = next(call for call in script.calls if call.ends_with("use"))
        assert len(call.to_document().leaves) <= 5000
        plain, reason = to_plain(call.arguments[0])
        assert reason or (isinstance(plain, list) and len(plain) == 5000)


def test_what_is_not_python_is_one_sentence() -> None:
    with pytest.raises(CkptcheckError, match=r"run\.py:2 is not Python: "):
        read("a = 1\nb = = 2\n")
    with pytest.raises(CkptcheckError, match=r"nests too deeply|too many nested"):
        read("(" * 5000 + ")" * 5000)


@pytest.mark.parametrize("change", ["X = {0!r} + X", "X = [{0!r}, *X]"])
def test_a_value_that_every_branch_writes_anew_does_not_double_with_each(change: str) -> None:
    branches = [f"if opaque():\n    {change.format('a')}\nelse:\n    {change.format('b')}" for _ in range(60)]
    start = "X = ['x']" if "[" in change else "X = 'x'"
    assert "set under a condition" in str(shown("\n".join([start, *branches, "use(X)"])))
