"""No stored tensor fills a parameter that every model of this architecture has.

## What it checks
For the architectures of transformers, encoders of images and sound included: each parameter that all their models have, whatever
the config says, is filled by a stored tensor, and so are those that `add_cross_attention`, an untied embedding, or any other one
setting adds to every layer (a rank, the width of Gemma 4's embeddings per layer). Which
parameters these are, and by which renamings transformers finds them under the names of older releases, was learned from
transformers. A parameter of a layer is looked for in each stored layer of its stack. Where the config names a model of another
type for a part than the architecture has by default, the rule is skipped.

A base model (`BertModel`) and a model with another head (`BertForQuestionAnswering`) need what the language model of their config
class needs, and their own head; a pooler, which not all of them use, may be absent. Where a base model was saved under the name of
its model for pretraining, as many encoders of sentences are, the missing head is an info.

Where a list in the config gives each layer its type (`mlp_layer_types`), a layer of a type that has some matrices of a part has all
of them: a dense layer with `up_proj` and without `gate_proj`, or experts without their router, are torn.

## Why it matters
transformers fills the parameter with ones or random numbers, and lists it in a long warning. A tower, a projector or a norm that an
exporter names otherwise, or a prefix that a wrapper leaves before every name, is lost so, and the model still answers.

## How to fix
Export again, and check which name the exporter does not map.

## When it can be wrong
The model's own code under a known `model_type` may omit the parameter: use `--ignore CFG045`. What only some releases of
a family have is not checked; what siblings lack is CFG005's, the rest of the language model CFG020's and CFG042's.

## Seen in
No public report: edits of headers at random (`make false-clean`) showed that no rule saw it.
"""

import re
from collections.abc import Collection, Iterator, Sequence

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.architecture import KnownModules
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.components import EMBEDDING, HEAD, SCORE
from ckptcheck.checkpoint.config import Config
from ckptcheck.checkpoint.decoder_families import family_of
from ckptcheck.checkpoint.heads import is_scorer
from ckptcheck.checkpoint.incomplete_layers import find_torn_layers, iter_compared_stacks
from ckptcheck.checkpoint.layer_blocks import find_lacking_layers, list_layer_tensors, list_outer_tensors
from ckptcheck.checkpoint.layout import ASIDE, INDEX
from ckptcheck.checkpoint.packing import COMPANION, unquantized_name, unquantized_names
from ckptcheck.checkpoint.parameters_table import ParametersTable, Places, list_samples
from ckptcheck.checkpoint.siblings import SHARED, SPARSE, layer_kinds
from ckptcheck.text.formatting import count, format_layers, join_truncated

PRETRAINED = ("ForMaskedLM", "ForPreTraining")
"""Ends of the names of classes whose heads only pretraining needs."""
ROUTER = re.compile(r"(^|\.)(gate|router)\.weight$")


@rule(
    "CFG045",
    "unfilled-parameter",
    severity="error",
    when=lambda ckpt: not ckpt.is_partial and not ckpt.is_mlx and ParametersTable.of(ckpt.config) is not None,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    table = ParametersTable.of(ckpt.config)
    if table is None or ckpt.config is None or not ckpt.tensors or ckpt.components.is_draft:
        return
    samples = list_samples(ckpt.layout)
    places = table.find_places(ckpt.layout, {*samples, *unquantized_names(samples)})
    # The dot behind a module lets the number at its end be one, as in ffn.0 of CTRL.
    modules = (module for name in samples if (module := _packed_module(name)) is not None)
    packed = {INDEX.sub("{}", f"{module}.")[:-1] for module in modules}
    absent: list[str] = []
    lacking: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    resolved = ckpt.config.resolved
    given = table.list_given(resolved) if resolved is not None else frozenset[str]()
    for parameter in sorted(table.needs | given):
        head, is_inside, rest = parameter.partition(".{}.")
        if parameter.rpartition(".")[0] in packed:
            continue
        if parameter not in places:
            absent.append(parameter)
            continue
        stored = places[parameter]
        layers = _list_layers(places, head) if is_inside else set()
        if stored is not None and (without := layers - stored):
            lacking.setdefault((head, tuple(sorted(without))), []).append(rest)
    has_cross = any(part in name for name in places for part in ("cross", "encoder_attn", "encoder_decoder"))
    if ckpt.config.value.get("add_cross_attention") is True and table.adds_cross_attention and not has_cross:
        yield Problem(
            f"add_cross_attention is true, but no layer has the tensors of it; transformers refuses to build a "
            f"{ckpt.config.architecture} so, or builds them of random numbers",
            file=ckpt.config.file,
            key="add_cross_attention",
            hint="set it to false, as the model was trained",
        )
    told = _list_told(ckpt)
    if not table.needs:
        return
    if table.needs <= {*absent}:
        if not _is_foreign_layout(ckpt):
            yield _describe_all(ckpt, sorted(table.needs))
        return
    lost_head = _list_lost_head(ckpt, table, absent)
    if lost_head:
        yield Problem(
            f"nothing is stored for {join_truncated(lost_head)}: the base model was saved without the head of "
            f"{ckpt.config.architecture}, and only what loads the base model misses nothing",
            file=ckpt.config.file,
            key="architectures",
            severity="info",
            hint="name the class of the base model in architectures",
        )
    absent = [name for name in absent if name not in lost_head and not _is_told(ckpt, name, told)]
    tie = ckpt.config.resolved.top.find("tie_word_embeddings") if ckpt.config.resolved is not None else None
    if tie is not None and tie.source == "config" and tie.value is False:
        absent += [name for name in sorted(table.untied) if name not in places and not _is_head(ckpt, name)]
    if absent:
        yield Problem(
            f"nothing is stored for {join_truncated(absent)}, which "
            + (
                f"{ckpt.config.architecture} has with this config"
                if given & {*absent}
                else f"every {ckpt.config.architecture} has"
            ),
            file=ckpt.config.file,
            key=absent[0],
            hint="export again; until then transformers fills "
            f"{'it' if len(absent) == 1 else count(len(absent), 'parameter')} with ones or random numbers",
        )
    for (head, missing), names in lacking.items():
        names = [name for name in names if not (SPARSE.search(name) and _is_kind(ckpt, head, missing))]
        if names := [name for name in names if not _is_told(ckpt, f"{head}.{{}}.{name}", told)]:
            yield _describe_lacking(ckpt.config, head, missing, names, str(ckpt.config.architecture))
    for prefix, kind, torn, names in _iter_lost_by_type(ckpt.config, table, places, packed):
        names = [name for name in names if not _is_told(ckpt, f"{prefix}.{{}}.{name}", told)]
        if names:
            yield _describe_lacking(ckpt.config, prefix, torn, names, f'the type "{kind}"')


def _list_lost_head(ckpt: Checkpoint, table: ParametersTable, absent: Collection[str]) -> list[str]:
    """Return the head for pretraining of a model whose base model was saved by itself; [] for all others.

    Encoders of sentences are saved so, under a config that still names the model they were trained from.
    """
    base = f"{table.facts.get('base', '')}."
    head = sorted(name for name in table.needs if not name.startswith(base))
    is_saved_alone = base != "." and not any(name.startswith(base) for name in ckpt.tensors)
    is_for_pretraining = table.architecture.endswith(PRETRAINED)
    return head if is_saved_alone and is_for_pretraining and {*head} <= {*absent} else []


def _describe_lacking(config: Config, prefix: str, layers: Sequence[int], names: list[str], kind: str) -> Problem:
    """Return the finding on layers that lack what transformers builds in every layer of an architecture, or of a type."""
    return Problem(
        f"{prefix}: {format_layers(layers)} {'lacks' if len(layers) == 1 else 'lack'} {join_truncated(names)}, which transformers "
        f"builds in every layer of {kind}",
        file=config.file,
        key=f"{prefix}.{layers[0]}.{names[0]}",
        hint="export again; until then transformers initializes it with random numbers",
    )


def _iter_lost_by_type(
    config: Config, table: ParametersTable, places: Places, packed: Collection[str]
) -> Iterator[tuple[str, str, list[int], list[str]]]:
    """Yield the prefix of a stack, a type of layers, and which of them lack which parameters whose partners they have.

    A type may have parts that a setting takes away, such as shared experts; a part of which only some matrices are there is torn.
    """
    for types in table.layer_types:
        setting = config.resolved.at(types.path) if config.resolved is not None else None
        if setting is None or not isinstance(setting.value, list):
            continue
        lost: dict[tuple[str, tuple[str, ...]], list[int]] = {}
        for layer, kind in enumerate(setting.value):
            own = types.own.get(kind, frozenset()) if isinstance(kind, str) else frozenset[str]()
            stored = {name for name in own if layer in (places.get(f"{types.prefix}.{{}}.{name}") or ())}
            partners = {_find_part(name) for name in stored}
            has_experts = any(".experts." in name for name in stored)
            names = [
                name
                for name in sorted(own - stored)
                if not name.endswith("bias")
                and not SHARED.search(name)
                and f"{types.prefix}.{{}}.{name}".removesuffix(".weight") not in packed
                and (_find_part(name) in partners or (has_experts and ROUTER.search(name)))
            ]
            if names:
                lost.setdefault((str(kind), tuple(names)), []).append(layer)
        for (kind, absent), layers in lost.items():
            yield types.prefix, kind, layers, list(absent)


def _find_part(name: str) -> str:
    """Return the part of a layer that a matrix belongs to with others: `mlp` for `mlp.up_proj.weight`."""
    return name.removesuffix(".weight").rpartition(".")[0]


def _is_kind(ckpt: Checkpoint, head: str, layers: Collection[int]) -> bool:
    """Whether these layers, and no others, are of kinds of their own by the lists in the config.

    The first layers of DeepSeek-V4 Flash compress no keys: their `compress_ratios` are 0.
    """
    stack = ckpt.components.stack
    if stack is None or ckpt.config is None or not (head == stack.prefix or head.endswith(f".{stack.prefix}")):
        return False
    kinds = layer_kinds(ckpt.config.text, len(ckpt.components.layers))
    own = {kinds.get(layer) for layer in layers}
    return own.isdisjoint(kind for layer, kind in kinds.items() if layer not in layers)


def _packed_module(name: str) -> str | None:
    """Return the module of a tensor that a quantization stores in place of, or beside, a plain weight."""
    module, _, last = name.rpartition(".")
    if ".weight." in name:
        return name.partition(".weight.")[0]
    return module if COMPANION.search(last) or unquantized_name(name) != name else None


def _list_layers(places: Places, head: str) -> set[int]:
    """Return the stored layers of a stack, as the built model names it."""
    inside = (found for name, found in places.items() if name.startswith(f"{head}.{{}}.") and found is not None)
    return set[int]().union(*inside)


def _describe_all(ckpt: Checkpoint, absent: list[str]) -> Problem:
    """Return the finding on a checkpoint of which no name is one that transformers looks for."""
    assert ckpt.config is not None
    stored = next(iter(ckpt.tensors))
    return Problem(
        f"no stored name is one that transformers looks for: it builds {join_truncated(absent)}, of random numbers, "
        f"and finds {stored}",
        file=ckpt.config.file,
        key="architectures",
        hint="convert the checkpoint to this architecture's layout, or remove the prefix that a wrapper left",
    )


def _is_foreign_layout(ckpt: Checkpoint) -> bool:
    """Whether CFG016 reports that no layer has a name of this architecture."""
    known, stack = KnownModules.of(ckpt.config), ckpt.components.stack
    return (
        known is not None
        and stack is not None
        and not any(
            known.has(known.module(stack.full_name(layer, name)))
            for layer, names in ckpt.components.layers.items()
            for name in names
        )
    )


def _is_head(ckpt: Checkpoint, name: str) -> bool:
    """Whether CFG007 reports that a parameter is missing."""
    return ckpt.components.is_language_model and HEAD.search(name) is not None


def _list_told(ckpt: Checkpoint) -> set[str]:
    """Return the names, within a layer or beside the layers, that CFG003, CFG005, CFG016, CFG020 and CFG042 report."""
    stack, config, alike = ckpt.components.stack, ckpt.config, family_of(ckpt.config) is not None
    told: set[str] = set()
    for each in iter_compared_stacks(ckpt):
        told.update(name for missing, _ in find_torn_layers(ckpt, each).values() for name in missing)
        if each is stack:
            layers = {layer: unquantized_names(names) for layer, names in ckpt.components.layers.items()}
            built = list_layer_tensors(config, each.prefix)
            told.update(find_lacking_layers(layers, built, alike=alike))
    if stack is not None:
        told.update(name for name in list_outer_tensors(config, stack.prefix))
    return told


def _is_told(ckpt: Checkpoint, parameter: str, told: set[str]) -> bool:
    """Whether another rule reports a parameter: of the layers, beside them, an embedding or a head."""
    _, is_inside, rest = parameter.partition(".{}.")
    if is_inside:
        return rest in told
    kinds = (EMBEDDING, HEAD, *((SCORE,) if is_scorer(ckpt.config) else ()))  # HEAD001 looks at scorers only
    return parameter in told or any(kind.search(parameter) and not ASIDE.search(parameter) for kind in kinds)
