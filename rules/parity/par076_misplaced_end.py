"""A response goes on after a token that ends it, or ends at a token that does not.

## What it checks
The tokens that end a response are those of generation_config.json or config.json of `--checkpoint`, or of the file's `stop_tokens`.

- Within a response no token is one of them. Tokens outside of the response mask, such as those between the turns of a conversation,
  do not count.
- The last token of each response is one of them, or the response has `max_tokens` tokens or reaches `max_model_len`, or its finish
  reason says length or abort. Without `max_tokens`, the greatest length that two responses share counts as the limit.

The rule does not apply to a file that says that the engine ignored end tokens.

## Why it matters
- After an end token the model writes text that it never learned there, another turn of a conversation with itself. The reward
  judges that text, and the trainer learns it.
- A truncated answer looks finished to the reward. If all answers end with one other token, the engine stops at an id that the
  checkpoint does not name, because it has another tokenizer or generation config; or the record drops the end token, and the
  trainer never learns to end.

## How to fix
Give the engine the ids (`stop_token_ids`), or the checkpoint's generation_config.json; `ckptcheck parity probe --only ends` tests
them one by one (PRB001). Set `ignore_eos` to false. See whether the record drops the last token. If you stop at texts
(`stop=["</answer>"]`), ignore this.

## When it can be wrong
- The file joins several turns and has no response mask. A model may name an end token that also stands between parts of one answer.
- Texts that end a response (`stop`) and calls of tools end it at ordinary tokens. They have the finish reason stop, and the rule
  then reports no more than an info.

## Seen in
turboderp-org/exllamav2#803 and Blaizzy/mlx-vlm#309 (of a list of end tokens only the first was taken), vllm-project/vllm#4180
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count


@rule(
    "PAR076",
    "misplaced-end",
    severity="warning",
    on="rollouts",
    when=lambda evidence: bool(evidence.stop_tokens) and not evidence.rollouts.metadata.sampling.ignore_eos,
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    ends = evidence.response_ends
    if not ends.responses:
        raise Skip("no response has tokens")
    if ends.passed:
        first = ends.passed[0]
        text = f"{len(ends.passed):,} of {count(ends.responses, 'response')} {'goes' if len(ends.passed) == 1 else 'go'} on after a"
        text += f" token that ends one; the first is token {first.token}"
        hint = "give the engine these ids as stop tokens; where several turns are joined, record the response mask"
        yield Problem(text, key=f"sequence {first.sequence}, token {first.position}", hint=hint)
    if ends.unexplained:
        sequence, last, reason = ends.unexplained[0]
        text = f"{len(ends.unexplained):,} of {count(ends.responses, 'response')} "
        text += "ends" if len(ends.unexplained) == 1 else "end"
        text += " neither by an end token nor by length"
        if (common := ends.common_last_token) is not None:
            text += f"; {common[1]:,} of them end with token {common[0]}, which nothing names as an end"
        else:
            text += f"; the first ends with token {last}"
        if reason:
            text += f" (finish reason {reason})"
        yield Problem(
            text,
            key=f"sequence {sequence}",
            hint="compare the engine's stop tokens and texts with generation_config.json",
            severity="info" if all(word for *_, word in ends.unexplained) else None,
        )
