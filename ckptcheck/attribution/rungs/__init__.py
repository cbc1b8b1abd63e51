"""The rungs, cheapest first: what needs files only, then what needs another forward, then what needs another start.

lag.py          objective: tokens that older weights drew
again.py        weights: a side scores again with nothing changed
weights.py      weights: bytes on both sides, and a cold start from the trainer's
config.py       semantics: what the two configs say
temperature.py  semantics: raw logprobs against those of the sampled distribution
tokens.py       semantics: BOS, context that was cut off, logprobs that belong to the next token, tokens that nobody scored
path.py         path: caches, decoding, batches
precision.py    precision: the head, the whole model
routing.py      routing: tokens that went to other experts
"""

from ckptcheck.attribution.rung import Rung
from ckptcheck.attribution.rungs import again, config, lag, path, precision, routing, temperature, tokens, weights

RUNGS: tuple[Rung, ...] = (
    Rung("tokens of older weights", "objective", lag.tried),
    Rung("tokens that were not scored", "semantics", tokens.unscored),
    Rung("logprobs moved by a token", "semantics", tokens.moved),
    Rung("the trainer again", "weights", again.trainer),
    Rung("temperature", "semantics", temperature.heated),
    Rung("top-p and top-k", "semantics", temperature.cut),
    Rung("the engine again", "weights", again.engine),
    Rung("weights", "weights", weights.tried),
    Rung("config", "semantics", config.tried),
    Rung("first token", "semantics", tokens.first),
    Rung("context", "semantics", tokens.context),
    Rung("caches", "path", path.caches),
    Rung("decoding", "path", path.decoding),
    Rung("batch", "path", path.batch),
    Rung("head in float32", "precision", precision.head),
    Rung("all in float32", "precision", precision.whole),
    Rung("experts", "routing", routing.tried),
)
