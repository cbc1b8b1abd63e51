"""The experiments, cheapest first: those that need only files, then a forward pass, then a new start of a side.

sides.py        weights, semantics, path, precision: a side scores again, as it is, from other weights, by another path or dtype
temperature.py  semantics: raw logprobs against logprobs of the sampling distribution
tokens.py       semantics: BOS, a context that is cut off, logprobs of the next token, tokens that a side did not score
routing.py      routing: tokens that the two sides route to different experts
lag.py          objective, the last: tokens that older weights sampled; the others run without them
"""

from ckptcheck.live.experiments.attribution.experiment import GapExperiment
from ckptcheck.live.experiments.attribution.experiments import lag, routing, sides, temperature, tokens

EXPERIMENTS: tuple[GapExperiment, ...] = (
    GapExperiment("tokens that were not scored", tokens.unscored, "semantics"),
    GapExperiment("logprobs moved by a token", tokens.moved, "semantics"),
    GapExperiment("the trainer again", sides.trainer_again, "weights"),
    GapExperiment("temperature", temperature.heated, "semantics"),
    GapExperiment("top-p and top-k", temperature.cut, "semantics"),
    GapExperiment("the engine again", sides.engine_again, "weights"),
    GapExperiment("weights", sides.weights, "weights"),
    GapExperiment("config", sides.config, "semantics"),
    GapExperiment("first token", tokens.first, "semantics"),
    GapExperiment("context", tokens.context, "semantics"),
    GapExperiment("caches", sides.caches, "path"),
    GapExperiment("decoding", sides.decoding, "path"),
    GapExperiment("batch", sides.batch, "path"),
    GapExperiment("head in float32", sides.head, "precision"),
    GapExperiment("all in float32", sides.whole, "precision"),
    GapExperiment("experts", routing.experts, "routing"),
    GapExperiment("tokens of older weights", lag.tried, "objective"),
)
