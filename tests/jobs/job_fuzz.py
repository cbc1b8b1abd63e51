"""Makes up the files of a job by the grammar of their languages, and has preflight read them in a child with limits.

``make fuzz DOOR=job`` runs `check_one` for many seeds; tests/jobs/test_job_traps.py replays some.
"""

from __future__ import annotations

import io
import random
from pathlib import Path

from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs.open_job import open_job, split_variables
from ckptcheck.linter import rule_loader
from ckptcheck.linter.baseline import read_baseline
from ckptcheck.linter.runner import run_rules
from ckptcheck.linter.settings import load_settings
from ckptcheck.live.gate.gate_file import read_gate_request
from ckptcheck.reporters import text
from tests.jobs.job_traps import LAUNCH, PLACES, PRIME, PYTHON, SHELL, SIGNS, TOML, TRL, VERL, YAML
from tests.limited_child import Outcome, run_limited

RULES = [rule for rule in rule_loader.load_rules() if rule.on == "job"]
KEYS = [
    "a", "b", "actor_rollout_ref", "rollout", "name", "actor", "defaults", "_self_", "<<", "hydra", "trainer", "vllm", "model",
    "path", "", "0",
    "job", "stages", "deadline", "select", "ignore", "schema", "findings", "_override_", "env_vars", "device_mapping",
    "allocation_mode",
]  # fmt: skip
SCALARS = [
    "1", "-1", "0x1f", "1e400", ".nan", "9" * 400, "true", "null", "???", "''", "x", "${a}", "${a.b}", "${..a}",
    "${oc.env:HOME}", "${oc.env:A,${b}}",
    "${oc.select:a,${a}}", "${a}${b}", "${${a}}", "*a", "*b", "&a 1", "!!python/object:os.system x", "2001-01-01",
    "1:59:59", '"\\ud800"', "'é'", "~", "[", "}",
    "list(range(0,999999999))", "sglang:d4t2|fsdp:d8", "@a", "/", "..", "a@b", "override a", "optional b", "10 min", "-0",
    "1_0", "|\n  x", ">-\n  y", '"\\U00110000"', "0x" + "f" * 5000, "0b" + "1" * 20_000, "1" + ":59" * 3000,
]  # fmt: skip
TAGS = ["null", "bool", "int", "float", "str", "timestamp", "binary", "set", "omap", "pairs", "map", "seq", "merge", "value",
        "python/tuple", "own", ""]  # fmt: skip
"""Tags of YAML's own and others, each before a value that it may not fit."""
MERGES = [
    "<<: *a", "<<: *b", "<<: [*a, *b]", "<<: [*a, *a, {c: *b}]", "<<: 1", "<<: ", "<<: [[*a]]", "<<: {<<: *a}", "'<<': *a",
    "!!merge x: *a", "? [a, b]\n: 1", "? {a: 1}\n: 1", "? *a\n: 1", "!!int 1: x", "!!bool abc: x", "!!null ~: x", "=: 1",
    "? !!set a", "1.5: x", "2001-01-01: x", "!!binary aGk=: x",
]  # fmt: skip
"""Lines of a mapping whose keys are no plain text, or merge another mapping."""
NAMES = ["A", "B", "X", "1", "@", "MODEL", "BASH_SOURCE", "IFS"]
WORDS = [
    "a", "$A", '"$B"', "${A:-$B}", "${A[@]}", "$(echo $A)", "$((A * B))", "{1..3}", "'x y'", "--tp", "4", "a.b=1", "+a={b: 1}",
    "~a", "a=[1,2", "${A//a/bb}",
    "*", "<(ls)", "2>&1", "<<< x", "$(seq 1 9)", "`pwd`", "${#A}", "${!A}", "\\", "#", "job.yaml", "-m", "--config", "a=${b}",
    "a='${oc.env:A}'", "é", "\t",
]  # fmt: skip
PROGRAMS = [
    "vllm serve", "python3 -m verl.trainer.main_ppo", "source run.sh", "source b.sh", "export A=", "A=", "A+=", "set --",
    "shift", "read -ra A <<<", "echo", "eval",
    "bash -c", "[ ", "[[ ", "f", "cd", "unset", "local A=", "ray job submit --runtime-env-json '{}' --", "python3 train.py",
    "swift rlhf", "sed s/a/b/g |",
]  # fmt: skip
EXPRESSIONS = [
    "1", "'x'", "a", "b", "[a, b]", "{'a': a, **b}", "f'{a}{b}'", "a + b", "a * 2000", "a or b", "not a", "a if b else c",
    "[x for x in a]", "len(a)", "str(a)",
    "a.append(b)", "a.update(b)", "a['k']", "a[1:]", "lambda: a", "f(a)", "C(a)", "a.b", "os.environ.get('A', a)", "'%s' % a",
    "a.join(b)", "a.replace('x', b)",
    "2 ** 40", "range(2000)", "sorted(a)", "a == b", "a in b", "GRPOConfig(**a)", "os.system(a)", "re.match(a, b)",
    "os.path.join(a, b)", "*a", "yield a", "(a := b)",
]  # fmt: skip


def make_yaml(dice: random.Random, depth: int = 0) -> str:
    """Make up a value in flow style."""
    kind = dice.random()
    anchor = dice.choice(["", "", "", "&a ", "&b "])
    if dice.random() < 0.1:
        anchor += dice.choice(["!!", "!!", "!!", "!", "!e!"]) + dice.choice(TAGS) + " "
    if depth > 4 or kind < 0.4:
        return anchor + dice.choice(SCALARS) if "!" in anchor else dice.choice(SCALARS)
    if kind < 0.7:
        return anchor + "[" + ", ".join(make_yaml(dice, depth + 1) for _ in range(dice.randrange(5))) + "]"
    return (
        anchor
        + "{"
        + ", ".join(f"{dice.choice(KEYS)}: {make_yaml(dice, depth + 1)}" for _ in range(dice.randrange(5)))
        + "}"
    )


def make_shell(dice: random.Random, depth: int = 0) -> str:
    """Make up some lines of a script."""
    lines = []
    for _ in range(dice.randrange(1, 6)):
        line = f"{dice.choice(PROGRAMS)} " + dice.choice(["", " "]).join(dice.choices(WORDS, k=dice.randrange(6)))
        inner = make_shell(dice, depth + 1) if depth < 3 and dice.random() < 0.4 else line
        forms = [line, f"if {line}; then\n{inner}\nfi", f"for A in {line}; do\n{inner}\ndone", f"f() {{\n{inner}\n}}",
                 f"( {inner} )", f"cat <<E\n{inner}\nE",
                 f"case $A in a) {line};; esac", f"while {line}; do {inner}; done", f"A=$({line})", f"A=({line})",
                 f"{line} && {line}", f"{line} \\"]  # fmt: skip
        lines.append(dice.choice(forms))
    return "\n".join(lines)


def make_python(dice: random.Random, depth: int = 0) -> str:
    """Make up some statements."""
    lines = []
    for _ in range(dice.randrange(1, 7)):
        one, other = dice.choices(EXPRESSIONS, k=2)
        inner = "\n".join(f" {line}" for line in make_python(dice, depth + 1).split("\n")) if depth < 3 else " pass"
        forms = [f"a = {one}", f"b = {one}", f"a += {one}", one, f"if {one}:\n{inner}\nelse:\n a = {other}",
                 f"for x in {one}:\n{inner}", f"while {one}:\n{inner}",
                 f"def f(a=None):\n{inner}\n return {other}", f"class C:\n{inner}", f"try:\n{inner}\nfinally: pass",
                 f"a['k'] = {one}", "del a['k']",
                 f"a, *b = {one}", f"with {one}:\n{inner}", f"from b import {dice.choice('abf')}", "a.b = a"]  # fmt: skip
        lines.append(dice.choice(forms))
    return "\n".join(lines)


def make_file(kind: str, dice: random.Random) -> str:
    """Make up a file: a trap of some length, or some lines by the grammar, sometimes repeated."""
    size = dice.choice([50, 500, 5000, 50_000])
    if dice.random() < 0.3:
        tables = {"yaml": YAML, "toml": TOML, "sh": SHELL, "py": PYTHON}
        begin, piece, end = dice.choice(tables[kind])
        if kind == "sh" and dice.random() < 0.7:
            (begin, end), piece = dice.choice(PLACES), "".join(dice.choices(SIGNS, k=dice.randrange(1, 4)))
        return begin + piece * (size // len(piece)) + end
    if kind == "yaml":
        lines = [f"{dice.choice(KEYS)}{number}: {make_yaml(dice)}" for number in range(dice.randrange(6))]
        if dice.random() < 0.3:
            lines = [
                "k1: &a {x: 1, y: {z: 2}}",
                "k2: &b {x: 3, <<: *a}",
                *lines,
                *dice.sample(MERGES, dice.choice([1, 2])),
            ]
        directive = dice.choice(
            [""] * 20 + ["%YAML 1.2\n---\n", "%TAG ! tag:yaml.org,2002:\n---\n", "---\n", "!!map\n"]
        )
        default = f"defaults: {make_yaml(dice)}\n" if dice.random() < 0.5 else ""
        return directive + "\n".join([*lines, default + VERL])
    if kind == "toml":
        return PRIME + "\n".join(
            f"{dice.choice(KEYS) or 'c'}{dice.choice(['', '.x'])} = {make_yaml(dice)}" for _ in range(dice.randrange(6))
        )
    lines = make_shell(dice) if kind == "sh" else make_python(dice)
    repeated = f"{lines}\n" * dice.choice([1, 1, 1, max(1, size // (len(lines) + 1))])
    return repeated + (LAUNCH if kind == "sh" else TRL)


def check_one(seed: int, folder: Path) -> Outcome:
    """Make up a job from a seed, and read it. Raises AssertionError where the child fails."""
    dice = random.Random(seed)
    folder.mkdir(exist_ok=True)
    kinds = {
        "job.yaml": "yaml",
        "b.yaml": "yaml",
        "job.toml": "toml",
        "run.sh": "sh",
        "b.sh": "sh",
        "train.py": "py",
        "b.py": "py",
    }
    for name, kind in kinds.items():
        content = make_file(kind, dice)
        if dice.random() < 0.1 and content:
            at = dice.randrange(len(content))
            content = (
                content[:at]
                + dice.choice(["", "\0", "\r", "\ufeff", "'", '"', "}", "é"])
                + content[at + dice.randrange(3) :]
            )
        (folder / name).write_bytes(content.encode("utf-8", "surrogatepass"))
    first = dice.choice(["job.yaml", "job.toml", "run.sh", "train.py"])
    overrides = [f"a{'.b' * dice.choice([1, 1, 1, 50_000])}={make_yaml(dice)}" for _ in range(dice.randrange(3))]
    variables = [f"{dice.choice(NAMES)}={dice.choice(WORDS) * dice.choice([1, 99])}" for _ in range(dice.randrange(3))]
    outcome = run_limited(lambda: read_all(folder, first, overrides, variables))
    assert not outcome.fault, f"{first}: {outcome.fault}"
    return outcome


def read_all(folder: Path, first: str, overrides: list[str], variables: list[str]) -> str:
    """Read a job with overrides and variables; its TOML file as settings, gate and baseline too. Returns what is said."""
    for read in (load_settings, lambda path: read_gate_request([str(path)]), read_baseline):
        try:
            read(folder / "job.toml")
        except CkptcheckError:
            continue
    try:
        report = run_rules(open_job([str(folder / first), *overrides], environment=split_variables(variables)), RULES)
    except CkptcheckError as trouble:
        return trouble.message
    crashes = [(code, why) for code, why in report.crashed if not why.startswith("could not read ")]
    assert not crashes, crashes
    text.write([report], RULES, stream := io.StringIO(), verbose=True)
    return stream.getvalue()
