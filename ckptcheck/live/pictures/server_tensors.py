"""Draws the tensors of running servers beside the reference and each other, and how far their logprobs are apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.layer_map import draw_layer_map
from ckptcheck.linter.pictures import Curves, HeatCell, HeatMap, NoPicture, State
from ckptcheck.live.pictures.token_lines import draw_token_lines, subtract_logprobs
from ckptcheck.live.refit.running_servers.comparability import is_comparable, reference_mismatch
from ckptcheck.text.formatting import natural_sort_key

if TYPE_CHECKING:
    from ckptcheck.live.refit.running_servers.trace import ServerEvidence, ServerState

STATES = (
    State("as the reference", "good", "the checksum of a server that was started here from the checkpoint"),
    State("as the other servers", "good", "there is no reference to hold it to"),
    State("compared with nothing", "quiet"),
    State("not readable", "gone", "the checksum is one of no bytes: the engine packed the weight"),
    State("other than on another server", "warn", "the servers disagree, and no reference says which one is right"),
    State("the copies disagree", "bad", "the server has several copies of the model, and they differ"),
    State("lacking", "bad", "the reference has it"),
    State("other than the reference", "bad"),
)


def draw_server_tensors(evidence: ServerEvidence, title: str) -> HeatMap | NoPicture | None:
    """Draw layer × module, with a cell for each server and rank inside."""
    if not any(server.checksums for server in evidence.servers):
        reasons = dict.fromkeys(server.refusals.get("checksums", "") for server in evidence.servers)
        return NoPicture(title, "; ".join(filter(None, reasons)) or "no server gave checksums of its tensors")
    cells: dict[str, dict[str, HeatCell]] = {}
    for server in evidence.servers:
        for place, state in _judge_tensors(server, evidence).items():
            rank, _, name = place.partition("/")
            cells.setdefault(name, {})[f"{server.url}, {rank}"] = HeatCell(state=state, name=name)
    is_alone = all(len(inner) == 1 for inner in cells.values())
    given: Mapping[str, HeatCell | Mapping[str, HeatCell]] = {
        name: next(iter(cells[name].values())) if is_alone else cells[name]
        for name in sorted(cells, key=natural_sort_key)
    }
    inside = "" if is_alone else ", on each server and rank: a click opens them"
    caption = f"Each cell is a tensor as the servers tell its checksum{inside}."
    if evidence.reference is None and evidence.reference_skipped:
        caption += f" There is no reference: {evidence.reference_skipped}."
    return draw_layer_map(title, caption, given, STATES, member_label="expert" if is_alone else "server")


def _judge_tensors(server: ServerState, evidence: ServerEvidence) -> dict[str, str]:
    """Return ``rank/name`` → the state of the tensor, for all that the server has or should have."""
    reference = evidence.reference
    if reference is not None and (reference_mismatch(server, reference) or not reference.weights):
        reference = None
    others = [
        other for other in evidence.servers if other is not server and is_comparable(server, other) and other.weights
    ]
    expected = reference.weights if reference is not None else {}
    ranks = {place.partition("/")[0] for place in server.weights}
    states = {place: "not readable" for place in server.checksums if place not in server.readable_checksums}
    for place in dict.fromkeys([*server.weights, *expected]):
        mine = server.weights.get(place)
        if mine is None:
            # a rank without checksums does not lack its tensors
            if place not in states and place.partition("/")[0] in ranks:
                states[place] = "lacking"
        elif len(mine) > 1:
            states[place] = "the copies disagree"
        elif place in expected or reference is not None:
            is_equal = expected.get(place) == mine
            states[place] = "as the reference" if is_equal else "other than the reference"
        elif any(other.weights.get(place) != mine for other in others):
            states[place] = "other than on another server"
        else:
            states[place] = "as the other servers" if others else "compared with nothing"
    return states


def draw_server_logprobs(evidence: ServerEvidence, title: str) -> Curves | None:
    """Draw the logprobs of each server minus the trainer's, or the first server's; None with nothing to compare."""
    scored = [server for server in evidence.servers if server.scores]
    lines = {server.url: [each.prompt_logprobs for each in server.scores] for server in scored}
    base, label = list(evidence.trainer_scores), "the trainer's"
    if not base and len(scored) > 1:
        base, label = lines.pop(scored[0].url), f"those of {scored[0].url}"
    if not base or not lines:
        return None
    caption = f"Each server's logprobs less {label}, for each token of the scored sequences, in their order. Equal is a line at 0."
    differences = {url: subtract_logprobs(scores, base) for url, scores in lines.items()}
    return draw_token_lines(title, caption, differences, ("REF031",))
