"""Configurations that ckptcheck composes are those that Hydra's compose composes, and both refuse the same ones."""

from __future__ import annotations

import copy
import random
import warnings
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.config_repository import CachingConfigRepository
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs.document import Document
from ckptcheck.jobs.files import JobFiles
from ckptcheck.jobs.launch import apply_parsed_overrides, parse_overrides
from ckptcheck.jobs.shell.word import Word

TREES: dict[str, dict[str, str]] = {
    "groups and packages": {
        "main.yaml": "defaults:\n  - engine: fast\n  - actor@job.actor: ${engine}_actor\n  - engine@job.second: slow\n  - _self_\n"
        "job: {actor: {lr: 2}}\ntop: 1\n",
        "engine/fast.yaml": "# @package _global_\nengine: fast\n",
        "engine/slow.yaml": "# @package _global_\nengine: slow\n",
        "actor/base.yaml": "lr: 1\nclip: {low: 0.1}\n",
        "actor/fast_actor.yaml": "defaults:\n  - base\n  - ../optim@optim: adam\n  - /model@_here_: small\n  - _self_\n"
        "clip: {high: 0.2}\n",
        "actor/slow_actor.yaml": "defaults:\n  - base\nclip: null\n",
        "optim/adam.yaml": "beta: [0.9, 0.99]\n",
        "model/small.yaml": "layers: 2\nhead: ${..top}\n",
        "model/large.yaml": "layers: 9\n",
        "extra/a.yaml": "from_a: 1\nboth: a\n",
        "extra/b.yaml": "from_b: 1\nboth: b\n",
    },
    "own values first, overrides and optional ones": {
        "main.yaml": "defaults:\n  - _self_\n  - db: mysql\n  - optional cache: none_there\n  - server: apache\n"
        "  - override server/ssl: off\ndb: {user: me, host: here}\n",
        "db/mysql.yaml": "host: there\nport: 3306\n",
        "db/postgres.yaml": "host: elsewhere\n",
        "server/apache.yaml": "defaults:\n  - ssl: on\n  - _self_\nname: apache\n",
        "server/ssl/on.yaml": "tls: true\n",
        "server/ssl/off.yaml": "tls: false\n",
    },
    "lists, nulls and references as sections": {
        "main.yaml": "defaults:\n  - extra: [a, b]\n  - none: null\n  - plain\n  - _self_\n"
        "other: ${extra}\nother_too: {}\nitems: [1, {x: 2}]\n",
        "plain.yaml": "items: [0]\nextra: {from_a: 7}\nother_too: {k: 1}\nempty: {}\n",
        "extra/a.yaml": "from_a: 1\nboth: a\n",
        "extra/b.yaml": "from_b: 1\nboth: b\n",
        "none/x.yaml": "n: 1\n",
    },
    "headers": {
        "main.yaml": "defaults:\n  - sub: one\n  - sub@other: two\n  - flat\n",
        "sub/one.yaml": "# @package a.b\nv: 1\n",
        "sub/two.yaml": "# @package a.b\nv: 2\n",
        "flat.yaml": "\n#  @package   deep.er\nv: 3\n",
    },
    "a reference that a later file adds to": {
        "main.yaml": "defaults:\n  - first\n  - second\n",
        "first.yaml": "base: {x: 1, y: {z: 2}}\ncopy: ${base}\n",
        "second.yaml": "copy: {x: 5}\n",
    },
}  # fmt: skip
CASES = [
    ("groups and packages", ""),
    ("groups and packages", "engine=slow"),
    ("groups and packages", "actor@job.actor=base"),
    ("groups and packages", "model@job.actor=large"),
    ("groups and packages", "+extra=a top=2"),
    ("groups and packages", "+extra@job.more=[a,b]"),
    ("groups and packages", "~engine@job.second"),
    ("groups and packages", "~actor@job.actor=slow_actor"),
    ("groups and packages", "extra=a"),
    ("groups and packages", "+engine=slow"),
    ("groups and packages", "++extra=a"),
    ("groups and packages", "engine=none_such"),
    ("groups and packages", "job.actor.lr=3 +job.actor.new={a:1,b:[x]} ++job.actor.clip={low:9} ~job.actor.optim"),
    ("groups and packages", "job.actor.no=3"),
    ("groups and packages", "job.actor.optim.beta.0=3"),
    ("groups and packages", "+job.actor.lr=3"),
    ("groups and packages", "~job.actor.no"),
    ("groups and packages", "~job.actor.lr=4"),
    ("groups and packages", "~job.actor.lr=2"),
    ("groups and packages", "job.actor.lr=1,2"),
    ("groups and packages", "job.actor.lr='1,2' job.actor.clip.low=[1,2]"),
    ("groups and packages", "job.actor={}"),
    ("groups and packages", "job.actor=null"),
    ("groups and packages", "job.actor=7"),
    ("groups and packages", "nothing@job=7"),
    ("groups and packages", "+a.b.c=1 +a.b.d=2 ++a.b={e:3} a.b.c=null"),
    ("groups and packages", "top={a:1}"),
    ("groups and packages", "engine={a:1}"),
    ("own values first, overrides and optional ones", ""),
    ("own values first, overrides and optional ones", "server/ssl=on db=postgres"),
    ("own values first, overrides and optional ones", "~server"),
    ("own values first, overrides and optional ones", "~server/ssl"),
    ("own values first, overrides and optional ones", "cache=none_there"),
    ("lists, nulls and references as sections", ""),
    ("lists, nulls and references as sections", "extra=[b]"),
    ("lists, nulls and references as sections", "extra=a none=x"),
    ("lists, nulls and references as sections", "other.from_a=3"),
    ("lists, nulls and references as sections", "items.0=3 items.1.x=4"),
    ("lists, nulls and references as sections", "empty.a=3"),
    ("lists, nulls and references as sections", "~other_too.k"),
    ("headers", ""),
    ("headers", "sub=two"),
    ("headers", "sub@other=one"),
    ("a reference that a later file adds to", ""),
    ("a reference that a later file adds to", "copy.x=6 base.x=7"),
]


def flatten(value: object, path: str = "") -> dict[str, object]:
    if isinstance(value, dict) and (value or not path):
        found: dict[str, object] = {}
        for key, item in value.items():
            found |= flatten(item, f"{path}.{key}" if path else str(key))
        return found
    return {path: value}


@pytest.fixture(autouse=True)
def no_shared_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Hydra read a configuration anew each time: it merges into the one that it remembers, and a second use sees that."""
    monkeypatch.setattr(
        CachingConfigRepository,
        "load_config",
        lambda self, config_path: copy.deepcopy(self.delegate.load_config(config_path=config_path)),
    )


def composed_by_hydra(folder: Path, overrides: list[str]) -> dict[str, object] | str:
    try:
        with warnings.catch_warnings(action="ignore"), initialize_config_dir(str(folder), version_base=None):
            config = compose("main", overrides=overrides)
        return flatten(OmegaConf.to_container(config, resolve=False))
    except (HydraException, OmegaConfBaseException, ValueError, AssertionError, TypeError) as error:
        return f"{type(error).__name__}: {error}"


def composed_by_ckptcheck(folder: Path, overrides: list[str]) -> dict[str, object] | str:
    read = Document()
    parsed, rest = parse_overrides([Word(text, 1) for text in overrides], read, "run.sh")
    assert not rest
    try:
        document, values = JobFiles(folder / "main.yaml").compose(folder / "main.yaml", "main.yaml", parsed)
        apply_parsed_overrides(values, document)
    except CkptcheckError as error:
        return error.message
    reasons = [refusal.why for refusal in read.refusals + document.refusals] + document.notes
    return "; ".join(reasons) if reasons else {path: leaf.value for path, leaf in document.leaves.items()}


def write(tree: dict[str, str], folder: Path) -> None:
    for name, text in tree.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def assert_equal(folder: Path, overrides: list[str], about: object) -> bool:
    """Assert that both compose the same or refuse, and return whether they compose."""
    theirs, ours = composed_by_hydra(folder, overrides), composed_by_ckptcheck(folder, overrides)
    if isinstance(theirs, str) or isinstance(ours, str):
        assert isinstance(theirs, str), (about, overrides, ours)
        assert isinstance(ours, str), (about, overrides, theirs)
        return False
    assert ours == theirs, (about, overrides)
    return True


@pytest.mark.parametrize(("tree", "overrides"), CASES)
def test_trees(tree: str, overrides: str, tmp_path: Path) -> None:
    write(TREES[tree], tmp_path)
    assert_equal(tmp_path, overrides.split(), tree)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_drawn_trees(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    whole = 0
    for number in range(40):
        folder = tmp_path / str(number)
        tree = draw_tree(draw)
        write(tree, folder)
        overrides = draw.sample(OVERRIDES, draw.choice([0, 0, 1, 2]))
        whole += assert_equal(folder, overrides, tree)
    assert whole > 8


OVERRIDES = [
    "g=x", "g=y", "h=x", "g/i=x", "+h=y", "+g@p=x", "~g", "~h=x", "g@p=y", "h@q.r=x", "v=5", "+new.k=1", "++v=[1]", "~v", "p={a:1}",
    "+p.a.b=1", "g=[x,y]", "+h@_global_=x",
]  # fmt: skip


def draw_tree(draw: random.Random) -> dict[str, str]:
    """Draw a tree of configurations with two groups and one below, whose defaults lists name what lies deeper."""
    deeper = {
        "": ["g: x", "g: y", "h: x", "g@p: x", "h@q.r: y", "h@_global_: x", "optional h@s: zz", "g: [x, y]", "h@t: [y]", "base",
             "base@b", "g: null", "/h@u: x", "override h: y", "override g: x", "h: ${g}", "h@w: ${g}", "g/i@m: x"],
        "g/": ["i: x", "i@p: y", "/h@_here_: x", "/h: y", "../h@k: x", "/h@_global_.z: x", "i@_global_: x", "override /h: x",
               "/h@_group_.n: y", "optional i@o: zz", "/h@pp: [x, y]"],
        "h/": ["/base@bb", "/base"], "g/i/": [],
    }  # fmt: skip
    tree = {"base.yaml": "v: base\nd: {base: 1}\n"}
    for prefix, names in (("", ["main"]), ("g/", ["x", "y"]), ("h/", ["x", "y"]), ("g/i/", ["x", "y"])):
        for name in names:
            entries: list[object] = [
                yaml.safe_load(text)
                for text in draw.sample(deeper[prefix], min(draw.choice([0, 1, 2, 3]), len(deeper[prefix])))
            ]
            entries.sort(key=lambda entry: isinstance(entry, dict) and "override" in next(iter(entry)))
            if entries and draw.random() < 0.6:
                entries.insert(draw.choice([0, 0, len(entries)]) if draw.random() < 0.9 else 0, "_self_")
            content: dict[str, object] = {"v": f"{prefix}{name}", "d": {name: draw.choice([1, None, {}, [1], "${v}"])}}
            if entries:
                content["defaults"] = entries
            header = (
                draw.choice(["", "", "", "# @package _global_\n", "# @package c.d\n", "# @package d\n"])
                if prefix
                else ""
            )
            tree[f"{prefix}{name}.yaml"] = header + yaml.safe_dump(content)
    return tree
