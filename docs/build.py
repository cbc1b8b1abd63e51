"""Builds the site: the pages of docs/, a page for every rule, the options and the API as the code declares them.

`make docs` runs it. The pages are assembled in build/docs, where links to files that are no pages become links to the source, and
mkdocs (mkdocs.yml) writes them to site/. A link that leads nowhere fails the build.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ckptcheck
from ckptcheck.cli.app import build_app
from ckptcheck.cli.verb_command import load_verb
from ckptcheck.linter.rule import Rule
from ckptcheck.linter.rule_loader import load_rules
from ckptcheck.verbs import VERBS
from ckptcheck.verbs.verb import Verb

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "build/docs"
SOURCE = (
    tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Source"] + "/blob/main/"
)
LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)([^)#\s]+)(?=[)#])")
MOST_BAD, MOST_OK = 3, 6
"""Cases that the page of a rule shows."""
AFTER_GUIDES = "---\nsearch:\n  boost: 0.01\n---\n\n"
"""The front matter of a page that a search lists behind the guides: there are hundreds of rules, and each has many words."""


def assemble_pages(folder: Path) -> None:
    """Write every page of the site into a folder, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for name in ("CHANGELOG", "CONTRIBUTING", "CODE_OF_CONDUCT", "SECURITY"):
        if (ROOT / f"{name}.md").is_file():
            _write(folder / f"project/{name.lower()}.md", _move_links(_read(ROOT / f"{name}.md"), ROOT, "project"))
    for page in sorted((ROOT / "docs").rglob("*.md")):
        place = page.relative_to(ROOT / "docs")
        _write(folder / place, _move_links(_read(page), page.parent, str(place.parent)))
    rules = load_rules()
    for rule in rules:
        _write(folder / f"rules/{rule.code}.md", AFTER_GUIDES + describe_rule(rule))
    _write(folder / "rules/index.md", AFTER_GUIDES + list_rules(rules))
    _write(folder / "reference/options.md", describe_options())
    _write(folder / "reference/api.md", describe_api())
    _write(folder / "reference/job-faults.md", describe_job_faults())


def _move_links(text: str, base: Path, place: str) -> str:
    """Point the links of a page that moved: to pages of the site where the target is one, else to the source."""

    def replace(match: re.Match[str]) -> str:
        target = (base / match[1]).resolve()
        up = "../" * len(Path(place).parts)
        if target.suffix == ".md" and target.is_relative_to(ROOT / "docs"):
            return up + str(target.relative_to(ROOT / "docs"))
        if target == ROOT / "rules/README.md":
            return f"{up}rules/index.md"
        if target.parent == ROOT and target.suffix == ".md" and target.stem != "README":
            return f"{up}project/{target.name.lower()}"
        if target.is_relative_to(ROOT / "docs") and target.is_file():
            return up + str(target.relative_to(ROOT / "docs"))
        if not target.exists():
            raise SystemExit(f"{base}: a link leads to {match[1]}, which is not there")
        return SOURCE + str(target.relative_to(ROOT))

    return LINK.sub(replace, text)


def describe_rule(rule: Rule) -> str:
    """Return the page of a rule: its docstring, and its cases as examples."""
    assert rule.path is not None
    summary, _, rest = rule.explanation.strip().partition("\n")
    cases = tomllib.loads(rule.path.with_suffix(".toml").read_text(encoding="utf-8"))
    lines = [
        f"# {rule.code} {rule.name}", "", f"**{rule.severity}** · {summary}", "", rest.strip(), "",
        "## Examples", "", "From the cases that the tests run.", "",
    ]  # fmt: skip
    for case in cases.get("bad", [])[:MOST_BAD]:
        expected = [message for message in case.get("expect", []) if isinstance(message, str)]
        lines += [f"*{case['title'].rstrip('.')}*", "", "```text", *expected, "```", ""]
    quiet = [case["title"] for case in cases.get("ok", [])][:MOST_OK]
    lines += ["It stays quiet where", "", *(f"- {title}" for title in quiet), ""] if quiet else []
    path = rule.path.relative_to(ROOT)
    return "\n".join([*lines, f"[The code]({SOURCE}{path}) · [all cases]({SOURCE}{path.with_suffix('.toml')})", ""])


def list_rules(rules: list[Rule]) -> str:
    """Return the table of all rules, family by family."""
    lines = [f"# The {len(rules)} rules", "", "`ckptcheck rule CODE` prints the same pages in the terminal."]
    family = None
    for rule in rules:
        assert rule.path is not None
        if rule.path.parent.name != family:
            family = rule.path.parent.name
            lines += ["", f"## {family}", "", "| code | name | severity | what it finds |", "|---|---|---|---|"]
        summary = rule.summary.rstrip(".").replace("|", "\\|")
        lines.append(f"| [{rule.code}]({rule.code}.md) | {rule.name} | {rule.severity} | {summary} |")
    return "\n".join(lines) + "\n"


def describe_job_faults() -> str:
    """Return the page of the faults that were planted in real jobs, as the last run of each table was kept."""
    with _importing_from(ROOT / "fixtures"):
        from jobs.trials import format_results
    return format_results()


def describe_options() -> str:
    """Return the page of every command with its options, as the command line declares them."""
    lines = ["# Commands and options", "", "`ckptcheck COMMAND --help` prints the same."]
    for name, command in _list_commands(build_app()):
        lines += ["", f"## ckptcheck {name}", "", _escape(inspect.cleandoc(command.help or ""))]
        sections = HelpSections()
        command.format_options(command.make_context(name, [], resilient_parsing=True), sections)
        for title, rows in sections.rows.items():
            lines += ["", f"| {title} | |", "|---|---|"]
            # the help indents the names of settings
            named = [
                (re.sub("^  ", "--set ", names), text) for names, text in rows if names not in ("--help", "-h, --help")
            ]
            lines += [f"| `{names}` | {_escape(' '.join(text.split()))} |" for names, text in named]
    return "\n".join(lines) + "\n"


class HelpSections:
    """Takes the sections of a help in place of the formatter that prints them."""

    def __init__(self) -> None:
        self.rows: dict[str, list[tuple[str, str]]] = {}
        """Heading → (option with what it takes, what it does and its default)."""
        self._title = ""

    @contextmanager
    def section(self, title: str) -> Iterator[None]:
        """Begin a section."""
        self._title = title
        yield

    def write_dl(self, rows: list[tuple[str, str]]) -> None:
        """Take the rows of the section."""
        self.rows.setdefault(self._title, []).extend(rows)


@contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _list_commands(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, inner in getattr(command, "commands", {}).items():
        words = f"{path} {name}".strip()
        yield from _list_commands(inner, words) if hasattr(inner, "commands") else [(words, inner)]


def _escape(text: str) -> str:
    return re.sub(r"([|<>*_\[\]])", r"\\\1", text)


def describe_api() -> str:
    """Return the page of what `import ckptcheck` offers: the verbs with their arguments, as they are declared, and the classes."""
    lines = ["# Reference of the API", "", "[A guide with examples](../reports.md) comes first."]
    commands = {load_verb(words).name: words for words in VERBS}
    for name in ckptcheck.__all__:
        value = getattr(ckptcheck, name)
        if not callable(value):
            continue
        lines += ["", f"## {name}", ""]
        if name in commands:
            lines += _describe_verb(load_verb(commands[name]), commands[name])
            continue
        try:
            arguments = [str(each) for each in inspect.signature(value).parameters.values()]
        except ValueError:
            arguments = []
        lines += ["```python", f"ckptcheck.{name}(", *(f"    {argument}," for argument in arguments), ")", "```", ""]
        lines += ["```text", inspect.getdoc(value) or "", "```"]
    return "\n".join(lines) + "\n"


def _describe_verb(verb: Verb, words: str) -> list[str]:
    """Return what a verb does, its command, and a table of its arguments."""
    lines = [_escape(inspect.cleandoc(verb.function.__doc__ or "")), "", f"The command: `ckptcheck {words}`.", ""]
    lines += ["| argument | takes | default | |", "|---|---|---|---|"]
    for name, parameter in verb.parameters.items():
        if parameter.declared is None:
            continue
        default = parameter.declared.shown or (
            "" if parameter.default is inspect.Parameter.empty else repr(parameter.default)
        )
        bounds = [f"from {parameter.declared.within.least:g}"] if parameter.declared.within.least is not None else []
        bounds += [f"to {parameter.declared.within.most:g}"] if parameter.declared.within.most is not None else []
        taken = " ".join([parameter.describe(), *bounds])
        star = "*" if parameter.is_variadic else ""
        lines.append(f"| `{star}{name}` | {_escape(taken)} | {_escape(default)} | {_escape(parameter.declared.help)} |")
    others = [name for name, parameter in verb.parameters.items() if parameter.declared is None]
    return [*lines, "", f"Also {', '.join(f'`{name}`' for name in others)}." if others else ""]


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def main() -> int:
    """Assemble the pages and build the site. Returns the exit code of mkdocs, which is not 0 where a link leads nowhere."""
    assemble_pages(PAGES)
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
