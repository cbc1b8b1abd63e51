"""The experiments, cheapest first: those that need only files, then a forward pass, then a new start of a side.

repeatability.py  weights: a side scores again with nothing changed
weights.py      weights: the bytes on both sides, and a cold start from the trainer's weights
config.py       semantics: the differences of the two configs
temperature.py  semantics: raw logprobs against logprobs of the sampling distribution
tokens.py       semantics: BOS, a context that is cut off, logprobs of the next token, tokens that a side did not score
path.py         path: caches, decoding, batches
precision.py    precision: the head, the whole model
routing.py      routing: tokens that the two sides route to different experts, or whose sparse attention sees other positions
lag.py          objective, the last: tokens that older weights sampled; the others run without them
"""

from ckptcheck.live.experiments.attribution.experiment import Experiment
from ckptcheck.live.experiments.attribution.experiments import (
    config,
    lag,
    path,
    precision,
    repeatability,
    routing,
    temperature,
    tokens,
    weights,
)

EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment("tokens that were not scored", "semantics", tokens.unscored),
    Experiment("logprobs moved by a token", "semantics", tokens.moved),
    Experiment("the trainer again", "weights", repeatability.trainer),
    Experiment("temperature", "semantics", temperature.heated),
    Experiment("top-p and top-k", "semantics", temperature.cut),
    Experiment("the engine again", "weights", repeatability.engine),
    Experiment("weights", "weights", weights.tried),
    Experiment("config", "semantics", config.tried),
    Experiment("first token", "semantics", tokens.first),
    Experiment("context", "semantics", tokens.context),
    Experiment("caches", "path", path.caches),
    Experiment("decoding", "path", path.decoding),
    Experiment("batch", "path", path.batch),
    Experiment("head in float32", "precision", precision.head),
    Experiment("all in float32", "precision", precision.whole),
    Experiment("experts", "routing", routing.experts),
    Experiment("attended positions", "routing", routing.attended_positions, needs="engine_indexer"),
    Experiment("tokens of older weights", "objective", lag.tried),
)
