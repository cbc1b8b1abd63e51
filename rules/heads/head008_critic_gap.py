"""A critic's weights, values, loss or gradients differ between transformers and megatron-core.

## What it checks
`ckptcheck critic` loads the source in transformers' class for token classification, as verl and ROLL load a critic.
- Every weight outside the head comes from the source. Of a language model only the head may be new.
- Every output has the shape [B, S, 1], and in Megatron only the last pipeline stage has the value head.
- In each parallel layout the values of all tokens but the last, [B, S−1], without padding and prompts, lie within 1e-5 of those
  of transformers, in float32, relative to the largest value.
- With the masked squared error of ROLL's critic worker, on the same tokens and returns, the losses of both frameworks are within
  1e-5 of each other, the gradient of every weight, head and trunk, is within 1e-3 of its largest element, and none is all zero.

## Why it matters
- transformers only logs what it draws at random. The critic then computes values from random layers, and training starts all the
  same.
- Advantages are computed from values. A critic that was trained in one framework and continues in the other starts from other
  values, and nothing reports that.
- A head that is detached, or a stage whose gradient does not flow back, trains on without an error: the loss falls a little,
  because the rest still learns.

## How to fix
Export the weights under the names that the class loads. `ckptcheck diff --critic` compares the weights on both sides. If they are
equal, the two models compute differently: look for a setting of the config that the conversion leaves out (rope, norm, biases).
Compute the loss from the output of the model itself, and let the parent class handle what the pipeline sends back.

## When it can be wrong
- A class with code of its own keeps the trunk under other names, or freezes a weight by design; ckptcheck loads no such class.
- Where values nearly cancel in the head, rounding in float32 exceeds the bound. The guide's `torch.allclose(rtol=1e-5)` is
  stricter for single values near zero; the table counts those, and they are no error.
- Experts that no token of the batch chose have no gradient; they are not counted.

## Seen in
The design of ROLL's Megatron critic: a load from a GPT may lack only `value_head`; `test_backend_consistency`; "Gradient flow
through value head", "Loss computation matches DeepSpeed"
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.critic import GRADIENT_RTOL, RTOL, CriticComparison
from ckptcheck.text.formatting import count, format_shape, join_truncated


@rule("HEAD008", "critic-gap", severity="error", on="critic")
def check(critic: CriticComparison) -> Iterator[Problem]:
    if missing := critic.missing_outside_head:
        yield Problem(
            f"{critic.model_class} draws {count(len(missing), 'weight')} at random that the source lacks:"
            f" {join_truncated(missing)}",
            key=missing[0],
            hint="export these weights under the names that the class loads",
        )
    yield from _compare_values(critic)
    yield from _compare_gradients(critic)


def _compare_values(critic: CriticComparison) -> Iterator[Problem]:
    expected = (*critic.batch, 1)
    for name, shapes in (
        ("transformers", critic.shapes),
        *((f"Megatron {run.layout}", run.shapes) for run in critic.runs),
    ):
        if wrong := next((shape for shape in shapes if shape != expected), None):
            yield Problem(
                f"{name}'s output has the shape {format_shape(wrong)}, not {format_shape(expected)}",
                hint="let the head compute one value for a token",
            )
    for run in critic.runs:
        with_head = [rank for rank, heads in enumerate(run.heads) if heads]
        if not with_head or with_head[-1] != len(run.heads) - 1:
            yield Problem(
                f"Megatron {run.layout}: the last rank has no value head",
                hint="create the head where post_process is true",
            )
        if len(run.values) != len(critic.values):
            yield Problem(
                f"Megatron {run.layout} computes {len(run.values):,} values, and transformers {len(critic.values):,}",
                hint="take all tokens but the last",
            )
            continue
        gap, beyond = critic.value_gaps[run.layout]
        if not gap <= RTOL * critic.scale:
            yield Problem(
                f"Megatron {run.layout}: values differ from transformers' by up to {gap:.3g}, where the largest value is"
                f" {critic.scale:.3g}; {beyond:,} of {len(run.values):,} are beyond rtol {RTOL:g}",
                hint="compare the weights with ckptcheck diff --critic, then the settings of both models",
            )


def _compare_gradients(critic: CriticComparison) -> Iterator[Problem]:
    if dead := [name for name in critic.without_gradient if ".experts." not in name]:
        yield Problem(
            f"no gradient reaches {count(len(dead), 'weight')} in transformers: {join_truncated(dead)}",
            key=dead[0],
            hint="check that the loss is computed from the model's own output, and that nothing is detached",
        )
    for run in critic.runs:
        if not abs(run.loss - critic.loss) <= RTOL * abs(critic.loss):
            yield Problem(
                f"Megatron {run.layout}: the loss is {run.loss:.8g}, and {critic.loss:.8g} in transformers",
                hint="compare masks and returns, and by what the loss is divided",
            )
        apart = {
            name: (distance, largest)
            for name, (distance, largest, _) in run.gradients.items()
            if not distance <= GRADIENT_RTOL * largest
        }
        if apart:
            first = max(apart, key=lambda name: apart[name][0] / (apart[name][1] or 1.0))
            lost = sum(run.gradients[name][2] == 0.0 for name in apart)
            yield Problem(
                f"Megatron {run.layout}: the gradients of {count(len(apart), 'weight')} differ from transformers'"
                + (f", {lost} of them are zero" if lost else "")
                + f"; {first} by up to {apart[first][0]:.3g}, where the largest is {apart[first][1]:.3g}",
                key=first,
                hint="follow the gradient from the head backwards: the first weight that differs names the fault",
            )
