"""Job files that ask for more work than they have bytes. Each trap grows with a size in bytes; preflight has to answer all sizes.

A trap returns the files of a job, name → text; the first one is what the user names. `repeat_piece` makes most of them:
one piece again and again, between a beginning and an end. tests/fuzz.py puts such pieces together at random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

Files = dict[str, str]
VERL = "actor_rollout_ref: {rollout: {name: vllm}}\n"
LAUNCH = "\npython3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.name=vllm\n"
TRL = "\nfrom trl import GRPOConfig\nGRPOConfig(output_dir='x', use_vllm=True)\n"
PRIME = "[orchestrator]\nbatch_size = 1\n[trainer.model]\nname = 'x'\n[inference.model]\nname='x'\n"
QUOTE = "actor_rollout_ref: {rollout: {name: '"
END = "'}}\n"
TEXT = PRIME + 'x = """\n'

YAML = [
    ("a: ", "[", "\n"), ("a: ", "{a: ", ""), ("", "? ", ""), ("", "- ", ""), ("a: ", "9", "\n"), ("a: ", "1_1", "x\n"),
    ("a: 1.", "_1", "e\n"),
    ("a: 1", ":59", "\n"), ("a: 0x", "f", "\n"), ("a: 0b", "1", "2\n"), ("a:\n", f"- 1{':59' * 300}\n", ""),
    ("a: [", "[],", "]\n"),
    ("a: [", "1,", "]\n"), ("a: '", "''", "'\n"), ('a: "', "x\\n", '"\n'), ("", "#\n", ""), ("", "a", ": 1\n"),
    ("# @package", " ", "\n"), ("# @package a", ".a", f"\n{VERL}"),
    ("# vllm==", "1.", "\n"), ("# ", "vllm==1 sglang[a", "\n"), ("a: {env_vars.", "a", ": 1}\n"), ("", "%TAG ! x\n", "---\n"),
    ("a:", "\t", "\n"),
    ("a: |\n", "  x\n", ""), ("a: >\n", "\n", ""), ("a: x\n", "  x\n", ""), ("a: 1\n" + QUOTE, "${a}", END), (QUOTE, "${", END),
    (QUOTE, "${oc.env:", END), (QUOTE, "${oc.env:a} ${b", END), (QUOTE + "${oc.env:", " ", "x" + END),
    (QUOTE + "${oc.env:", "a ", END),
    (QUOTE + '${oc.env:"', "\\", "x" + END), (QUOTE + "${oc.env:", "1_1", END), (QUOTE + '${oc.env:X,"', "\\\\a", '"}' + END),
    (QUOTE + "${oc.env:A," * 30, "x", "}" * 30 + END), (QUOTE, "\\", "${a}" + END), (QUOTE + "${", ".", "a}" + END),
    ("allocation_mode: '", "|ffn:", "'\n"), ("allocation_mode: '", "| ", "d1'\n"), ("allocation_mode: '", "(", "d1'\n"),
    ("allocation_mode: 'sglang:", "d1", "x'\n"), ("actor_train: {device_mapping: 'list(range(0, ", "9", "))'}\n"),
]  # fmt: skip
"""(beginning, piece, end) of configurations of YAML."""
TOML = [
    (PRIME + "[a", " ", "]\n"), (PRIME + "[a]", " ", "\n"), (TEXT, " ", '"""\n'), (TEXT, "a.", '\n"""\n'),
    (TEXT, "a . ", '\n"""\n'),
    (TEXT + "[", "a . ", '\n"""\n'), (TEXT + "[a", " ", 'x\n"""\n'), (TEXT + "[a]", " ", 'x\n"""\n'), (TEXT, "a", '\n"""\n'),
    (PRIME + "a", ".a", " = 1\n"), (PRIME + "a", " . 'a'", " = 1\n"), (PRIME + "[a", ".a", "]\n"), (PRIME + "a = ", "[", ""),
    (PRIME + "a = ", "{a=", ""), (PRIME, "[[a]]\n", ""), (PRIME + "a = ", "9", "\n"), (PRIME + "a = ", "1_", "\n"),
    (PRIME + "a = ", "1", "x\n"),
    (PRIME + 'a = "', "x\\n", ""), (PRIME + "a = [", "1979-05-27T07:32:00Z,", "]\n"), (PRIME + "a = 0x", "f", "\n"),
]  # fmt: skip
"""(beginning, piece, end) of configurations of TOML."""
SIGNS = [
    "(", "((", "{", "[", "$(", "$((", "${", "${A:-", '"$(', '"${A:-"', "`", "<(", "'", '"', "\\", "<<A ", "<<'A' ", "A=(", "if ",
    "while :; do ", "for i in a; do ", "case a in a) ", "f() { ", "! ", "$[", "\\\n", "#", "a#", "$", ">", "<", "<<<", "&&",
    ";", ";;", "|", "&",
    "*", "{1..9}", "=", "A=", "A+=a ", "A+=$A ", "A=$A$A ", "export A=$A ", '"$@"', "${#A}", "${A[@]}", "${A//a/b}", "${A%%*}",
    "a ", "a\n", "\n",
    " ", "--a ", "a.b=1 ", "a=[ ", "a='", "''", "set -- $@ a\n", 'set -- "$@" "$@"\n', "shift\n", "read A <<< $A\n",
    "eval $A\n", "cat <<A\nx\nA\n",
    "bash -c 'vllm serve a'\n", "f() { f; f; }\n", "A=$(echo $A)\n", "A=$(seq 1 2000)\n", "A=$((A + 1))\n", "[ $A = b ] && ",
    "source $A\n", "source x\n",
    "case $A in\n", "vllm serve a\n", "python3 x.py ", "-m ", "python3 --config ", "trl/", "cli ",
]  # fmt: skip
"""What opens, repeats or grows in a shell script."""
PLACES = [
    ("", LAUNCH),
    ("vllm serve a ", LAUNCH),
    ('X="', '"' + LAUNCH),
    ("X=$(", ")" + LAUNCH),
    ("X=${A:-", "}" + LAUNCH),
    ("bash <<E\n", LAUNCH + "E\n"),
]
"""(beginning, end) of scripts in which the signs stand."""
A2000, A1900 = f"A={'a' * 2000}\n", "a = list(range(1900))\n"
SHELL = [
    ("X=$((", "1+", "1))"), ("X=$((", "(", "))"), (A2000, "X=${A%%*a*a*b}\n", ""), (A2000, "[[ $A == *a*a*a*b ]] && X=1\n", ""),
    (A2000, "X=$(echo $A | sed s/a/aaaaaaaaaaaaaaa/g)\n", ""), ("A=a\n", "A=$(echo $A | sed s/a/aaaaaaaaaaaaaaa/g)\n", ""),
    ("A=a\n", "A=${A//a/aaaaaaaaaaaaaaaaaaaa}\n", ""), (f"A={'a' * 90000}\n", "B=$A\n", ""),
    (f"A=({'a ' * 9000})\n", "A+=(b)\n", ""),
    (f"A=({'a ' * 9000})\n", "X=${#A[@]}\n", ""), (f"A=({'a ' * 9000})\n", 'X="${A[*]}"\n', ""),
    (f"set -- {'a ' * 9000}\n", "shift\n", ""),
    ("", "cat <<A; ", "\nA\n"), ("python3 -m verl.trainer.main_ppo ", "a='{b:{c:{d:1}}}' ", "\n"),
    ("python3 -m verl.trainer.main_ppo ", f"a='[{'b,' * 9000}]' ", "\n"),
    ("python3 -m verl.trainer.main_ppo ", f"a={'[' * 61} ", "\n"),
    (f"python3 -m verl.trainer.main_ppo +a=[{'1,' * 9000}1] ", "a.0=1 ", "\n"),
    ("python3 -m verl.trainer.main_ppo ", f"a='{'${' * 5000}' ", "\n"),
    ("python3 -m verl.trainer.main_ppo ", "a=" + "\\" * 9000 + "' ", "\n"), ("vllm serve x --a ", "1 ", "\n"),
    ("vllm serve x --a ", f"'{'[' * 400}' ", "\n"),
    ("vllm serve x --a ", "'{a: [1, {b: 2}]}' ", "\n"), ("", "vllm\t\t\t", "\n"),
]  # fmt: skip
"""(beginning, piece, end) of shell scripts."""
PYTHON = [
    ("a = ", "(", ""), ("a = ", "1+", "1"), ("a = ", "2**", "1"), ("a = ", "not ", "1"), ("a = b", ".c", ""),
    ("a = b", "()", ""), ("a = b", "[0]", ""),
    ("a = 1", "<2", ""), ("a = ", "b or ", "1"), ("a = ", "'x'+", "'x'"), ("b = 'x'\na = f'", "{b}", "'"),
    ("a = 'xxxxxxxxxx'\n", "a = a + a\n", ""),
    ("a = 'xxxxxxxxxx'\n", "a = f'{a}{a}'\n", ""), ("a = [1]\n", "a = [a, a]\n", "b = str(a)\n"),
    ("a = [1]\n", "a = a + a\n", ""),
    ("a = []\n", "a.append(1)\n", ""), ("a = 'x' * 90000\n", "b = a.replace('x', a)\n", ""), ("", "a = 'x' * 99999\n", ""),
    ("a = f'{b}x' * 1900\n", "c = a + a\n", ""), ("a = 'x ' * 40000\n", "b = a.split()\n", ""),
    ("import json\n" + A1900, "b = json.dumps(a)\n", ""),
    ("for a in range(2000):\n for b in range(2000):\n  for c in range(2000):\n   d = a\n", "#\n", ""),
    ("", "a = [b for b in range(2000) for c in range(2000)]\n", ""),
    ("def f(a):\n return f(a) + f(a)\n", "f(2)\n", ""), ("a = []\n", "if b: a.append(c)\nelse: a.append(d)\n", ""),
    ("a = ''\n", "if b: a += 'x'\nelse: a += 'y'\n", ""), ("if b: a = 1\n", "elif c: a = 2\n", ""), ("", "if b: a = 1\n", ""),
    ("import re\n", "re.match('(a*)*b', 'a' * 199)\n", ""), ("import re\n", "a = re.search('a*a*b', 'a' * 199)\n", ""),
    ("import re\n", "a = re.search('(a|a|aa)+b', 'a' * 199)\n", ""), ("import re\na = re.match('", "a?", "', 'a' * 199)\n"),
    ("import re\n", f"a = re.match('{'a?' * 30}{'a' * 30}', '{'a' * 29}')\n", ""), ("a = 'x' * 99999\n", "b = a[1:]\n", ""),
    ("a = '", "x ", "'\n"),
    ("a = '''", "x\n", "'''\n"), ("a = f'''", "{b}x\n", "'''\n"), ("a = ", "9", ""), ("a = 0x", "f", "\nb = str(a)\n"),
    ("", "x.f('vllm serve y')\n", ""),
    ("import os\na = 'vllm serve x ' + '--a b ' * 16000\n", "os.system(a)\n", ""),
    ("import os\n", "os.environ['A'] = os.environ.get('A', '') + 'x'\n", ""),
    ("a = ", "lambda: ", "1"),
    ("a = []\na.append(a)\nb = {}\nb['b'] = b\nstr(a)\na == a\nfrom trl import GRPOConfig\n", "GRPOConfig(a=a, b=b, **b)\n", ""),
    (A1900, "b = -1 in a\n", ""), (A1900, "b = sorted(a)\n", ""), ("import os\na = 'x'\n", "a = os.path.join(a, a)\n", ""),
    ("from pathlib import Path\na = Path('x')\n", "a = a / a\n", ""),
    ("import shlex\na = \"'\"\n", "a = shlex.quote(a) + a\n", ""), ("", "@a\n", "def f(): pass\n"),
    ("import shlex\na = \"'\"\n", "a = shlex.quote(a)\n", ""),
    ("class C:\n @property\n def a(self): return self.a\n", "C().a\n", ""), ("", "try: a\nexcept: b\n", ""),
]  # fmt: skip
"""(beginning, piece, end) of Python scripts, before a configuration."""


def repeat_piece(name: str, begin: str, piece: str, end: str) -> Callable[[int], Files]:
    """Return the trap that repeats a piece in one file."""
    return lambda size: {name: begin + piece * max(1, (size - len(begin)) // len(piece)) + end}


def list_traps() -> Iterator[tuple[str, Callable[[int], Files]]]:
    """Yield all traps, each with its name."""
    tables = (("job.yaml", YAML, VERL), ("job.toml", TOML, ""), ("run.sh", SHELL, LAUNCH), ("train.py", PYTHON, TRL))
    for file, table, after in tables:
        for begin, piece, end in table:
            yield f"{file} {begin[-20:]!r} {piece[:30]!r} {end[:10]!r}", repeat_piece(file, begin, piece, end + after)
    for sign in SIGNS:
        for begin, end in PLACES:
            yield f"run.sh {begin!r} {sign!r}", repeat_piece("run.sh", begin, sign, end)
    for make in MULTIPLYING:
        yield make.__name__, make


# --- what multiplies by naming what was named before ---


def _chain(first: str, line: Callable[[int], str], last: str, size: int) -> str:
    """Return a first line, as many numbered lines as fit in a size, and an end."""
    lines = [line(number) for number in range(1, max(2, size // len(line(100))))]
    return "\n".join([first, *lines, last])


def yaml_interpolations(size: int) -> Files:
    """Each key holds the one before it twice; no chain is followed further than 60 keys."""
    name = f"\nactor_rollout_ref: {{rollout: {{name: '${{k{min(size // 22, 50)}}}'}}}}\n"
    return {
        "job.yaml": _chain("k0: " + "x" * 50, lambda n: f"k{n}: ${{k{n - 1}}}${{k{n - 1}}}", name, min(size, 55 * 22))
    }


def yaml_aliases(size: int) -> Files:
    """Each list holds the one before it twice."""
    return {"job.yaml": _chain("k0: &k0 [x, x]", lambda n: f"k{n}: &k{n} [*k{n - 1}, *k{n - 1}]", VERL, size)}


def yaml_merges(size: int) -> Files:
    """Each mapping merges the one before it twice."""
    return {
        "job.yaml": _chain(
            "k0: &k0 {a: 1}", lambda n: f"k{n}: &k{n} {{<<: [*k{n - 1}, *k{n - 1}], a{n}: 1}}", VERL, size
        )
    }


def yaml_wide_merges(size: int) -> Files:
    """Many mappings merge the same large one."""
    keys = ", ".join(f"a{n}: 1" for n in range(max(1, size // 20)))
    return {"job.yaml": _chain(f"k: &k {{{keys}}}", lambda n: f"m{n}: {{<<: *k}}", VERL, size // 2)}


def yaml_references(size: int) -> Files:
    """A long chain of references."""
    return {"job.yaml": _chain("", lambda n: f"k{n}: ${{k{n + 1}}}", VERL, size)}


def yaml_circles(size: int) -> Files:
    """Keys that all refer to each other."""
    name = "\nactor_rollout_ref: {rollout: {name: '${k1}'}, actor: {strategy: '${k2}'}}\n"

    def line(n: int) -> str:
        return f"k{n}: ${{k{n * 7 % 50}}}${{k{n * 11 % 50}}}${{k{n * 13 % 50}}}"

    return {"job.yaml": _chain("k0: ${k1}", line, name, min(size, 1500))}


def yaml_keys(size: int) -> Files:
    """Many keys, each deep."""
    return {"job.yaml": _chain("", lambda n: f"{'a.' * 55}b{n}: 1", VERL, size)}


def defaults_that_multiply(size: int) -> Files:
    """Each configuration includes the next one three times."""
    files = {"job.yaml": "defaults: [a0, a0@b.c, a0@d.e]\n" + VERL}
    for n in range(min(18, size // 50)):
        files[f"a{n}.yaml"] = f"defaults: [a{n + 1}, a{n + 1}@x{n}, a{n + 1}@y{n}]\nz: 1\n"
    return files


def defaults_in_a_circle(size: int) -> Files:
    """Configurations that include each other."""
    return {"job.yaml": "defaults: [a]\n" + VERL, "a.yaml": f"defaults: [job]\nb: {'x' * (size // 2)}\n"}


def defaults_overrides(size: int) -> Files:
    """A long list of overrides."""
    return {"job.yaml": _chain("defaults:", lambda n: f"- override g{n}: x", VERL, size)}


def defaults_interpolations(size: int) -> Files:
    """A long list of choices that are interpolations."""
    return {"job.yaml": _chain("defaults:", lambda n: f"- g{n}: ${{g{n - 1}}}", VERL, size)}


def toml_keys(size: int) -> Files:
    """Many keys, each deep."""
    return {"job.toml": _chain(PRIME, lambda n: f"x.{'a.' * 55}b{n} = 1", "", size)}


def shell_variables(size: int) -> Files:
    """Each variable holds the one before it twice."""
    return {"run.sh": _chain("A0=xxxxxxxxxx", lambda n: f'A{n}="$A{n - 1}$A{n - 1}"', LAUNCH, size)}


def shell_arrays(size: int) -> Files:
    """Each array holds the one before it twice."""
    return {"run.sh": _chain("A0=(x x)", lambda n: f'A{n}=("${{A{n - 1}[@]}}" "${{A{n - 1}[@]}}")', LAUNCH, size)}


def shell_functions(size: int) -> Files:
    """Each function calls the next one many times."""
    functions = [f"f{n}() {{ {f'f{n + 1};' * (size // 60)} }}" for n in range(7)]
    return {"run.sh": "\n".join(functions) + "\nf7() { X=1; }\nf0\n" + LAUNCH}


def shell_sources(size: int) -> Files:
    """Each script sources the next one several times."""
    files = {"run.sh": "source s0.sh\n" + LAUNCH, "s8.sh": "X=1\n"}
    return files | {f"s{n}.sh": f"source s{n + 1}.sh\n" * max(2, size // 128) for n in range(8)}


def shell_sources_itself(size: int) -> Files:
    """A script sources itself."""
    return {"run.sh": "source run.sh\n" * max(1, size // 15) + LAUNCH}


def shell_overrides(size: int) -> Files:
    """Many overrides of different keys."""
    overrides = " ".join(f"a.b{n}=1 ~a.b{n}" for n in range(size // 19))
    return {"run.sh": f"python3 -m verl.trainer.main_ppo {overrides}\n"}


def python_functions(size: int) -> Files:
    """Each function calls the next one many times."""
    lines = [f"def f{n}():\n    " + f"f{n + 1}();" * (size // 60) + "0" for n in range(9)]
    return {"train.py": "\n".join(lines) + "\ndef f9(): pass\nf0()\n" + TRL}


def python_classes(size: int) -> Files:
    """Each class builds twice on the one before it."""
    return {
        "train.py": _chain(
            "class C0: a = 1", lambda n: f"class C{n}(C{n - 1}, C{n - 1}): b = 1", "C50().zz\n" + TRL, size
        )
    }


def python_tables(size: int) -> Files:
    """Many copies of a large dict."""
    keys = ",".join(f"'k{n}':1" for n in range(max(1, size // 20)))
    return {
        "train.py": f"from trl import GRPOConfig\na = {{{keys}}}\n"
        + "b = {**a}\nGRPOConfig(**a)\n" * (size // 60)
        + TRL
    }


MULTIPLYING: list[Callable[[int], Files]] = [
    yaml_interpolations, yaml_aliases, yaml_merges, yaml_wide_merges, yaml_references, yaml_circles,
    yaml_keys, defaults_that_multiply,
    defaults_in_a_circle, defaults_overrides, defaults_interpolations, toml_keys, shell_variables, shell_arrays, shell_functions,
    shell_sources, shell_sources_itself, shell_overrides, python_functions, python_classes, python_tables,
]  # fmt: skip
