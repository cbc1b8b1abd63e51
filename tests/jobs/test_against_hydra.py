"""What ckptcheck reads of YAML, interpolations and overrides is what OmegaConf and Hydra read, who forget the lines."""

from __future__ import annotations

import random
import warnings

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs import yaml_file
from ckptcheck.jobs.document import Leaf
from ckptcheck.jobs.hydra.override import parse_override
from ckptcheck.jobs.hydra.value_grammar import GrammarError
from ckptcheck.jobs.interpolation import resolve

THOROUGH = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
PARSER = OverridesParser.create()

SCALARS = (
    "1e6|1.5e6|.5|-.5|.5e6|.5e+6|1.|1_0.5|1__0|0x1f|0o7|017|1:30|1:30.5|.inf|-.inf|+.inf|yes|on|no|Off|~|null|Null|true|TRUE|"
    "2024-01-01|2001-12-14t21:59:43.10-05:00|1e|1_e5|-1e-5|+1|-1.e5|1.e+5|1_000e3|0b11|x|x:y|-x|'1'|'yes'|1.2.3|1e-6|x y|'${a}'"
)


@pytest.mark.parametrize("scalar", SCALARS.split("|"))
def test_a_scalar_of_yaml(scalar: str) -> None:
    text = f"a: {scalar}\nl: [{scalar}]\n"
    theirs = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    ours = {path: leaf.value for path, leaf in yaml_file.read(text, "x").leaves.items()}
    assert repr(ours) == repr(theirs)


MERGES = """
one: &one {a: 1, b: 2, both: 2, c: {x: 1}}
two: &two {b: 3, d: 4}
also: &also {both: 3, d: 4}
first: {<<: [*one, *two], e: 5}
second: {<<: [*two, *one], b: 9}
third: {d: 0, <<: *also, <<: *one}
"""
"""PyYAML 6.0.4 takes the last of several mappings in a list for keys of two letters or more, and the first of several merges for
keys of one letter (yaml/pyyaml#953); what stands here is read alike by all versions."""


@st.composite
def merging_mappings(draw: st.DrawFn) -> str:
    """Mappings, each of which may merge some before it."""
    lines: list[str] = []
    for number in range(draw(st.integers(2, 5))):
        sources = draw(st.lists(st.sampled_from([f"*m{one}" for one in range(number)]), max_size=3)) if number else []
        merged = draw(
            st.sampled_from([[f"<<: [{', '.join(sources)}]"], [f"<<: {one}" for one in sources]])
            if sources
            else st.just([])
        )
        own = draw(st.dictionaries(st.sampled_from(["n", "k", "lr", "top_p"]), st.integers(0, 2), max_size=3))
        pairs = draw(st.permutations([*merged, *(f"{key}: {value}" for key, value in own.items())]))
        lines.append(f"m{number}: &m{number} {{{', '.join(pairs)}}}")
    return "\n".join(lines)


@THOROUGH
@given(text=merging_mappings())
def test_what_versions_of_pyyaml_merge(text: str) -> None:
    document = yaml_file.read(text, "x")
    ours = {path: leaf.value for path, leaf in document.leaves.items() if leaf.value != {}}
    if tuple(map(int, yaml.__version__.split(".")[:3])) >= (6, 0, 4):
        ours |= {merge.leaf.key: merge.other for merge in document.ambiguous}
    theirs = yaml.safe_load(text)
    assert ours == {f"{name}.{key}": value for name, values in theirs.items() for key, value in values.items()}


def test_merges_of_yaml() -> None:
    document = yaml_file.read(MERGES, "x")
    theirs = OmegaConf.to_container(OmegaConf.create(MERGES))
    assert isinstance(theirs, dict)
    for section, values in theirs.items():
        found = {rest: leaf.value for rest, leaf in document.iter_section(str(section))}
        assert found == {key: value for key, value in values.items() if key != "c"} | (
            {"c.x": 1} if "c" in values else {}
        ), section


KEYS = [
    "a", "a.b", "+a", "++a.b", "~a", "g/h", "g@p", "g/h@p.q", "+g@", "~g@x", "a.0.b", "$x", "a-b", "1", "+++a", "a@b@c", "a..b",
]  # fmt: skip
PIECES = [
    "a", "b.c", "=", "1", "0", "-5", "+3", "1e-6", ".5", "1.", "'x y'", '"q"', "\\'", "\\", "[", "]", "{", "}", ":", ",", "${", "}",
    " ", "true", "null", "None", "${a.b}", "${oc.env:X,1}", "$", "/", "@", "*", "?", "|", "%", "x-y", "_", "10_000", "inf", "NaN",
    "é", "#", "~", "+", "\t", "''", "\\,", "\\ ", "1:2", "http://h:80/p", "\\\\", "!", "'a\\'b'", "007", "yes", "0x1f", "[1,2]",
    "{a:1}", "[{b: 'c'}]", "int", "(", ")",
]  # fmt: skip


@THOROUGH
@given(
    st.sampled_from(KEYS),
    st.sampled_from(["=", "=", "=", "= ", " =", ""]),
    st.lists(st.sampled_from(PIECES), max_size=7),
)
def test_an_override(key: str, equals: str, pieces: list[str]) -> None:
    text = key + equals + "".join(pieces)
    try:
        theirs = PARSER.parse_override(text)
        kind = {"CHANGE": "", "ADD": "+", "FORCE_ADD": "++", "DEL": "~"}[theirs.type.name]
        value = "several" if theirs.is_sweep_override() else repr(theirs.value())
        expected: tuple[object, ...] | None = (kind, theirs.key_or_group, theirs.package, value)
    except HydraException:
        expected = None
    try:
        ours = parse_override(text)
    except GrammarError:
        assert expected is None
        return
    found = (ours.kind, ours.key, ours.package, "several" if ours.is_sweep else repr(ours.value))
    assert ours.reason or found == expected


@pytest.mark.parametrize(
    "text", ["a=int(3.7)", "a=str(1)", "a=str(true)", "a=float(1)", "a=choice(1,2)", "a=range(3)", "a=no(1)"]
)
def test_a_function_in_an_override(text: str) -> None:
    try:
        theirs = PARSER.parse_override(text)
    except HydraException:
        with pytest.raises(GrammarError):
            parse_override(text)
        return
    ours = parse_override(text)
    assert ours.is_sweep == theirs.is_sweep_override()
    assert ours.is_sweep or repr(ours.value) == repr(theirs.value())


REFERENCES = [
    "${a}", "${b.c}", "${.c}", "${..a}", "${l[0]}", "${l.1}", "${b[c]}", "x", "-", "\\", "\\\\", "$", "{", "}",
    "${oc.env:CKPTCHECK_X}",
    "${oc.env:CKPTCHECK_NOT_SET,word}", "${oc.env:CKPTCHECK_NOT_SET}", "${oc.select:a,one}", "${oc.select:zz,q}", "${oc.select:zz}",
    "${oc.env:CKPTCHECK_NOT_SET,b-${k}}", "${mul:1,2}", "${${k}}", "${b.${k2}}", "${oc.env:CKPTCHECK_NOT_SET,'x y'}", "${ a }",
    "${oc.select:..a,${b.c}}", "${d.e.f}", "${oc.decode:'8'}", "${oc.env:CKPTCHECK_NOT_SET,null}", "${nul}", "1", "'", '"', "${q}",
    "${oc.select:nul,4}", "${oc.select: a , 2}", "${oc.env:CKPTCHECK_NOT_SET,}", "${b.c", "${}", "é",
]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_interpolations(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTCHECK_X", "seven")
    draw = random.Random(seed)

    def text() -> str:
        return "".join(draw.choice(REFERENCES) for _ in range(draw.choice([1, 1, 1, 2, 3])))

    resolved = refused = 0
    for _ in range(120):
        tree = {
            "a": draw.choice([1, "x", text(), None, True]),
            "b": {"c": draw.choice([2, text(), text()]), "e": {"c": text()}, "l": [text(), 1]},
            "l": [text(), "y"],
            "k": "a",
            "k2": "c",
            "d": draw.choice([{"e": {"f": text()}}, "${b}"]),
            "q": draw.choice(["???", text()]),
            "nul": None,
        }
        written = yaml.safe_dump(tree)
        document = yaml_file.read(written, "x")
        document.environment["CKPTCHECK_X"] = Leaf("seven", "CKPTCHECK_X")
        try:
            config = OmegaConf.create(written)
        except OmegaConfBaseException:
            # OmegaConf refuses the file as a whole for one malformed interpolation.
            assert any((found := resolve(document, path)) is None or found.reason for path in document.leaves), written
            continue
        for path in ("a", "b.c", "b.e.c", "b.l", "l", "d.e.f", "d.c", "q", "nul"):
            try:
                with warnings.catch_warnings(action="ignore"):
                    theirs = OmegaConf.select(config, path, throw_on_missing=True)
                    if OmegaConf.is_config(theirs):
                        theirs = OmegaConf.to_container(theirs, resolve=True)
            except OmegaConfBaseException:
                found = resolve(document, path)
                assert found is None or found.reason or ".c" in str(tree), (path, tree)
                refused += 1
                continue
            ours = resolve(document, path)
            value = ours.value if ours else None
            if ours is not None and ours.reason:
                raise AssertionError((path, tree, ours.reason))
            resolved += 1
            if not isinstance(theirs, dict):
                assert str(value) == str(theirs), (path, tree)
    assert resolved > 400
    assert refused > 50


def test_a_text_that_doubles_is_not_written_out() -> None:
    lines = ["a0: xxxxxxxxxx", *(f"a{n}: ${{a{n - 1}}}${{a{n - 1}}}" for n in range(1, 40))]
    with pytest.raises(CkptcheckError, match="comes to more than 300,000 steps of work"):
        resolve(yaml_file.read("\n".join(lines), "job.yaml"), "a39")


@pytest.mark.parametrize(
    "text",
    [
        "a0: &a0 [1, 2]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40)),
        "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{x{n}: *a{n - 1}, y: *a{n - 1}}}\n" for n in range(1, 40)),
        "a: &a {"
        + ", ".join(f"k{n}: {n}" for n in range(5000))
        + "}\n"
        + "".join(f"m{n}: {{<<: *a}}\n" for n in range(5000)),
    ],
)
def test_yaml_that_multiplies_is_refused(text: str) -> None:
    with pytest.raises(CkptcheckError, match="steps of work"):
        yaml_file.read(text, "job.yaml")


def test_a_list_that_doubles_by_interpolations_is_refused() -> None:
    lines = ["a0: [1, 2]", *(f"a{n}: ['${{a{n - 1}}}', '${{a{n - 1}}}']" for n in range(1, 25))]
    document = yaml_file.read("\n".join(lines), "job.yaml")
    with pytest.raises(CkptcheckError, match="steps of work"):
        resolve(document, "a24")


def test_a_long_chain_of_references_is_no_traceback() -> None:
    document = yaml_file.read("\n".join(["a0: 1", *(f"a{n}: ${{a{n - 1}}}" for n in range(1, 500))]), "job.yaml")
    found = resolve(document, "a499")
    assert found is not None
    assert found.reason.endswith("is at the end of more than 60 references")
