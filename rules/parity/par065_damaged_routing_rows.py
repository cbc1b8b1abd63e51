"""Rows of a record of expert routing are missing, repeated, or name impossible experts.

## What it checks
- Every token but the last of its sequence has experts in every layer that has any. -1 for all choices means that none were
  recorded: a warning.
- No stretch of rows equals the rows before it, or those of an earlier stretch, in all layers, while its tokens differ. The rate of
  equal rows by chance depends on the model; the rule estimates it from the file's shorter stretches, and needs 3 equal rows in
  succession, or 8 of a copied stretch.
- Expert ids are 0 to the number of experts minus 1. The number of experts comes from `--checkpoint`, else from the file; without it
  only negative ids are found.
- The choices of a token in one layer are different experts. The rule reports rows of zeros in all layers separately: the engine
  wrote nothing to them. The last row of a sequence does not count, because frameworks pad it.

## Why it matters
- A router replay has nothing to replay in a missing row. NeMo-RL lets Megatron's router choose for such tokens, and miles sends
  them to the experts 0, 1, 2, …, so the trainer computes other logprobs than the engine from there on.
- A router chooses by the token's hidden state. Rows that repeat are left over in a buffer: of padding, of another request, or of an
  earlier part of this one that was appended again. A replay sends these tokens to experts that they never went to.
- A trainer gathers by these ids. One beyond the last expert ends in a device assertion or reads other memory, and a negative one
  counts from the end. Ids such as -56 are larger ids in a dtype that is too narrow: 200 as an int8.
- A router takes the k best experts, and they are k different ones. Megatron's routing replay asserts that. Without the assertion,
  the trainer sends the token to one expert with twice the weight.

## How to fix
- Missing rows: ask for the routing with every request of a sequence, those after a tool call, an abort or a preemption included,
  and join the parts at the right token. An engine that gets a request again has to compute its prompt again, or keep the rows of
  the cached part.
- Repeated rows: update the engine, or switch off the feature at which the stretch begins: chunked prefill, preemption, an update of
  weights, the prefix cache. Cut the rows of a continued request at the token where it continues.
- Impossible ids: store ids in a dtype that holds the number of experts (int8 up to 127, uint8 up to 255, else int16). An id that
  equals the number of experts is a shared expert that the engine fused into its routed ones: leave it out.
- Rows of zeros: find out where the record of these tokens is lost, for example on the prefill side of a disaggregated engine,
  between the turns of a conversation, or before the request was preempted.

## When it can be wrong
- Tokens that no engine computed, such as the answer of a tool that ends a sequence, can have no row. A job that replays only the
  tokens of responses does without the others.
- Models with few experts in one or two layers have equal rows for many tokens; the file's shorter stretches show that.
- The checkpoint is not the one that drew the tokens. Models with experts that compute nothing may number these after the real ones.
- Hash layers and models that route at random may choose an expert twice.

## Seen in
- missing: NVIDIA-NeMo/RL `backfill_missing_routed_experts`, radixark/miles miles/utils/replay_base.py (-1 becomes the experts 0, 1,
  2, …), vllm-project/vllm#39917 (routing that was gathered before a preemption is dropped)
- repeated: sgl-project/sglang#36404 (one row stands for 67 tokens from a chunk's boundary on), vllm-project/tpu-inference#3583
- impossible: NVIDIA-NeMo/RL (`routed_experts_dtype` by the number of experts), PrimeIntellect-ai/prime-rl
  src/prime_rl/inference/vllm/routed_experts.py
- zeros: sgl-project/sglang#23885 (every token of a prompt; Megatron: "Duplicate experts in routing!"),
  vllm-project/tpu-inference#3583, PrimeIntellect-ai/verifiers#2616 (a row at each turn's boundary)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.metrics.routing_record import RoutingRecord
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.rollouts.rollout_queries import describe_rows
from ckptcheck.text.formatting import count


@rule(
    "PAR065",
    "damaged-routing-rows",
    severity="error",
    on="rollouts",
    when=lambda evidence: bool(evidence.routing_records),
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    for record in evidence.routing_records:
        yield from _find_missing(record)
        yield from _find_repeated(record)
        yield from _find_impossible(record)
        yield from _find_doubled(record)


def _find_missing(record: RoutingRecord) -> Iterator[Problem]:
    if (missing := record.missing) is not None:
        yield Problem(
            f"{describe_rows(record, missing)} {'names' if missing.number == 1 else 'name'} no experts (-1)",
            key=f"{record.column}, {missing.place}",
            hint="find out which request of that sequence did not report its routing",
            severity="warning",
        )
    elif not record.captured_layers.any() and record.due_rows and record.is_all_missing:
        yield Problem(
            f"none of {count(record.due_rows, 'row')} of {record.column} names an expert (-1)",
            key=record.column,
            hint="switch the engine's report of routed experts on",
            severity="warning",
        )


def _find_repeated(record: RoutingRecord) -> Iterator[Problem]:
    if not record.repeated:
        return
    longest = record.repeated[0]
    rows = count(longest.last - longest.first + 1, "row")
    source = f"token {longest.source}"
    if longest.source_sequence != longest.sequence:
        source += f" of sequence {longest.source_sequence}"
    if longest.distance == 1:
        text = f"the experts of {source} stand for tokens {longest.first} to {longest.last} too"
    else:
        text = f"the {rows} from token {longest.first} on are those from {source} on, although the tokens are others"
    if len(record.repeated) > 1:
        text += f"; this is the longest of {count(len(record.repeated), 'such stretch', 'such stretches')}"
    yield Problem(
        text,
        key=f"{record.column}, sequence {longest.sequence}",
        hint="find out what happened at that token: a chunk, a preemption, a cached prefix, a request that was continued",
    )


def _find_impossible(record: RoutingRecord) -> Iterator[Problem]:
    if (found := record.impossible) is None:
        return
    wrong = next(
        number for number in found.ids if number < 0 or (record.experts is not None and number >= record.experts)
    )
    if wrong == -1:
        reason, hint = "-1 beside real experts", "record all choices of a token, or none"
    elif wrong < -1:
        reason = f"a negative id: {wrong}" + (f" (an int8 holds {wrong + 256} so)" if wrong >= -128 else "")
        hint = "store the ids in a wider dtype"
    else:
        reason = f"expert {wrong} of a model with {record.experts} (0 to {(record.experts or 1) - 1})"
        hint = "leave shared experts out, and check that the checkpoint is the one that drew the tokens"
    text = f"{describe_rows(record, found)} {'has' if found.number == 1 else 'have'} {reason}"
    yield Problem(text, key=f"{record.column}, {found.place}", hint=hint)


def _find_doubled(record: RoutingRecord) -> Iterator[Problem]:
    if record.shape[1] < 2:
        return
    if (zeros := record.zeros) is not None:
        verb = "is" if zeros.number == 1 else "are"
        yield Problem(
            f"{describe_rows(record, zeros)} {verb} zeros in all layers: nothing was recorded",
            key=f"{record.column}, {zeros.place}",
            hint="find out where the routing of these tokens is lost; a replay sends them all to expert 0",
        )
    if (found := record.duplicates) is not None:
        yield Problem(
            f"{describe_rows(record, found)} {'names' if found.number == 1 else 'name'} an expert twice, the first"
            f" {list(found.ids)}",
            key=f"{record.column}, {found.place}",
            hint="compare the dtype and the layout of the ids with what the engine wrote",
        )
