"""YAML, TOML and overrides become leaves with their lines; traps are refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs import launch, toml_file, yaml_file
from ckptcheck.jobs.document import Document, Leaf, read_text_file
from ckptcheck.jobs.interpolation import resolve
from ckptcheck.jobs.python_source.script import parse_python
from ckptcheck.jobs.shell.script import Word


def values(document: Document) -> dict[str, object]:
    return {path: leaf.value for path, leaf in document.leaves.items()}


def test_yaml_has_lines_and_reads_numbers_as_omegaconf_does() -> None:
    found = yaml_file.read("a:\n  b: 1e-6\n  c: [1, x]\n\n  d: null\ne: {}\nf: 'true'\ng: 2024-01-01\n", "job.yaml")
    assert values(found) == {"a.b": 1e-6, "a.c": [1, "x"], "a.d": None, "e": {}, "f": "true", "g": "2024-01-01"}
    assert [leaf.line for leaf in found.leaves.values()] == [2, 3, 5, 6, 7, 8]


def test_yaml_merges_and_aliases() -> None:
    found = yaml_file.read("base: &B\n  x: 1\n  y: {z: 2}\nown:\n  <<: *B\n  x: 3\nsame: *B\n", "job.yaml")
    assert values(found) == {"base.x": 1, "base.y.z": 2, "own.x": 3, "own.y.z": 2, "same.x": 1, "same.y.z": 2}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\nb: [1\n", "job.yaml:3 is not YAML: expected ',' or ']', but got '<stream end>'"),
        ("a: 1\na: 2\n", "job.yaml:2 says a a second time, which OmegaConf refuses"),
        (
            "a: !!python/object/apply:os.system ['x']\n",
            "job.yaml:1 has the tag !!python/object/apply:os.system, and tags are not obeyed",
        ),
        ("a:\n  b: !env X\n", "job.yaml:2 has the tag !env, and tags are not obeyed"),
        ("- 1\n", "job.yaml holds no mapping of keys to values, so it is no job's configuration"),
        ("", "job.yaml holds no mapping of keys to values, so it is no job's configuration"),
        ("? [a, b]\n: 1\n", "job.yaml:1 has a key that is no plain text"),
        ("a:\t1\n", "job.yaml:1 is not YAML: found character '\\t' that cannot start any token"),  # libyaml takes it
        ("a: 1\n---\nb: 2\n", "job.yaml:2 is not YAML: but found another document"),
        ("a: " + "[" * 100 + "]" * 100, "job.yaml:1 is nested too deeply to be a configuration"),
        ("a: " + "[" * 100_000, "job.yaml is nested too deeply to be a configuration"),
        ("a: &a {b: *a}\n", "job.yaml:1 is nested too deeply to be a configuration"),
        ("a: 0b2\n<<: 3\n", "job.yaml:2 merges (<<) something that is no mapping"),
        ("a: \x01\n", "job.yaml is not YAML: unacceptable character #x0001: special characters are not allowed in"
         ' "<unicode string>", position 3'),
    ],
)  # fmt: skip
def test_yaml_that_is_trouble(text: str, sentence: str) -> None:
    with pytest.raises(CkptcheckError) as trouble:
        yaml_file.read(text, "job.yaml")
    assert trouble.value.message == sentence


HUGE = "0x" + "f" * 5000
"""A number that Python reads, and refuses to write in decimal digits."""


@pytest.mark.parametrize(
    "value",
    [
        "!!bool abc", "!!bool ''", "!!bool", "!!int x", "!!int ''", "!!int _", "!!int +", "!!int 1:x", "!!float abc", "!!float",
        "!!float _", "!!float " + "1:" * 400 + "1.5", "!!null [a]", "!!seq x", "!!map [a]", "!!binary x", "!!set {a, b}",
        "!!omap [a: 1]", "!!pairs [a: 1]", "!!python/tuple [1]", "!own x", "!<tag:x> y", "!!merge x", "!!value =", "&a [*a]",
        "{<<: x}", "{<<: [[{b: 1}]]}", "{!!int x: !!bool y}", '"\\U00110000"', '"\\UFFFFFFFF"', HUGE, "0b" + "1" * 20_000,
        "0" + "7" * 6000, "9" * 5000, "1:" + "00:" * 3000 + "00",
    ],
)  # fmt: skip
def test_a_value_that_is_none_is_a_sentence_with_its_place(value: str) -> None:
    """PyYAML raises KeyError, IndexError and others for a tag that the text does not fit."""
    with pytest.raises(CkptcheckError, match=r"^job\.yaml(:2)? "):
        yaml_file.read(f"b: 1\na: {value}\n", "job.yaml")
    yaml_file.parse_scalar(value)


def test_a_number_too_long_to_be_written_is_a_sentence() -> None:
    for read, text in (
        (toml_file.read, f"a = [{HUGE}]\n"),
        (parse_python, f"a = f'{{{HUGE}}}'\n"),
        (yaml_file.read, f"%YAML {'9' * 5000}.1\n---\na: 1\n"),
    ):
        with pytest.raises(CkptcheckError, match=r"^job |^job:1 "):
            read(text, "job")


@pytest.mark.parametrize("key", ["a" + ".a" * 300, "+a" + ".a" * 300, "~a" + ".a" * 300])
def test_a_key_has_no_depth_without_end(key: str) -> None:
    """An override of 50,000 dots took 4.8 GB, and was clean: each section above it has a path of its own."""
    document = Document()
    with pytest.raises(CkptcheckError, match=r"^the key a\.a\.a\..* has more than 200 dots$"):
        launch.apply_overrides([Word("a" + ".a" * 150 + "=1", 1), Word(f"{key}=1", 1)], document, "run.sh")


def test_a_billion_laughs_are_not_expanded() -> None:
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(
        CkptcheckError, match=r"job\.yaml comes to more than 300,000 steps of work: its aliases, merges"
    ):
        yaml_file.read("\n".join(lines), "job.yaml")


def test_toml_has_lines() -> None:
    text = 'a = 1\n[b]\nc = "x"\n[b.d]\n"e" = [1, 2]\n[[list]]\nx = 1\n[b.f]\n g = { h = 1 }\n'
    found = toml_file.read(text, "rl.toml")
    assert values(found) == {"a": 1, "b.c": "x", "b.d.e": [1, 2], "b.f.g.h": 1, "list": [{"x": 1}]}
    assert {path: leaf.line for path, leaf in found.leaves.items()} == {
        "a": 1,
        "b.c": 3,
        "b.d.e": 5,
        "b.f.g.h": 9,
        "list": 6,
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a = 1\nb = \n", "rl.toml:2 is not TOML: Invalid value"),
        ("a = 1\na = 2\n", "rl.toml:2 is not TOML: Cannot overwrite a value"),
        ("a = " + "[" * 5000, "rl.toml is nested too deeply, or holds a number too long, to be a configuration"),
        (".".join("a" * 100) + " = 1\n", "rl.toml is nested too deeply to be a configuration"),
    ],
)  # fmt: skip
def test_toml_that_is_trouble(text: str, sentence: str) -> None:
    with pytest.raises(CkptcheckError) as trouble:
        toml_file.read(text, "rl.toml")
    assert trouble.value.message == sentence


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"a: 1\n\xff\xfe")
    (tmp_path / "nul").write_bytes(b"a: 1\n\nb: \0")
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(100_000_000)
    for name, sentence in [
        ("binary", "x:2 is not UTF-8 text (byte 5)"),
        ("nul", "x:3 holds a NUL; it is not a text file"),
        ("large", "x has 100 MB; no job's configuration has more than 1 MB"),
        ("no", "x does not exist"),
        (".", "x is a folder"),
    ]:
        with pytest.raises(CkptcheckError) as trouble:
            read_text_file(tmp_path / name, "x")
        assert trouble.value.message == sentence


def test_overrides_replace_add_and_remove() -> None:
    document = Document()
    for path in ("a.b", "a.c.d", "a.c.e", "f"):
        document.put(path, Leaf(1, path))
    rest = launch.apply_overrides(
        [
            Word(text, 7)
            for text in ("a.b=2.5", "+a.new=[x,1]", "++f=null", "~a.c", "python", "s='1'", "e=", "t=${a.b}")
        ],
        document,
        "run.sh",
    )
    assert values(document) == {"a.b": 2.5, "f": None, "a.new": ["x", 1], "s": "1", "e": "", "t": "${a.b}"}
    assert document.leaves["a.b"] == Leaf(2.5, "a.b", "run.sh", 7)
    assert [word.text for word in rest] == ["python"]


def test_a_section_replaces_a_value_and_the_other_way_round() -> None:
    document = Document()
    document.put("a", Leaf(1, "a"))
    document.put("a.b", Leaf(2, "a.b"))
    assert values(document) == {"a.b": 2}
    document.put("a", Leaf(3, "a"))
    assert values(document) == {"a": 3}


@pytest.mark.parametrize(
    ("value", "comes_to", "reason"),
    [
        ("${x.y}", 5, ""),
        ("${.near}", "here", ""),
        ("${..x.y}", 5, ""),
        ("a-${x.y}-${.near}", "a-5-here", ""),
        ("${oc.env:CKPTCHECK_NOT_SET,0.5}", 0.5, ""),
        ("${oc.env:EXPORTED}", 3, ""),
        ("${oc.env:CKPTCHECK_NOT_SET}", None, "$CKPTCHECK_NOT_SET is taken from the environment of the job"),
        ("${oc.select:x.y,9}", 5, ""),
        ("${oc.select:no.such,9}", 9, ""),
        ("${oc.select:no.such}", None, ""),
        ("${oc.select:no.such,${x.y}}", 5, ""),
        ("${mul:${x.y},2}", None, "${mul:${x.y},2} is computed by the job itself"),
        ("1-${mul:2,2}", None, "${mul:2,2} is computed by the job itself"),
        ("${no.such}", None, "${no.such} refers to a key that does not exist"),
        ("${s.k}", None, "${s.k} refers to itself"),
        ("${.........x}", None, "${.........x} refers to a key that does not exist"),
        ("${", None, "${ is no interpolation that is understood"),
        ("???", None, "the job requires a value (???), and none is given"),
        ("${copy.y}", 5, ""),
    ],
)
def test_interpolations(value: str, comes_to: object, reason: str) -> None:
    document = Document(environment={"EXPORTED": Leaf("3", "EXPORTED")})
    for path, plain in {"x.y": 5, "s.near": "here", "copy": "${x}"}.items():
        document.put(path, Leaf(plain, path))
    document.put("s.k", Leaf(value, "s.k"))
    found = resolve(document, "s.k")
    assert found is not None
    assert (found.value, found.reason) == (comes_to, reason)
