"""The critic's loss or gradients differ between the frameworks, or a weight gets no gradient.

## What it checks
With the masked squared error of ROLL's critic worker, on the same tokens and returns:
- the losses of both frameworks are within 1e-5 of each other;
- the gradient of every weight, head and trunk, is within 1e-3 of its largest element, in every layout;
- no weight has a gradient of zeros.

## Why it matters
A head that is detached, or a stage whose gradient does not flow back, trains on without an error: the loss falls a little, because
the rest still learns.

## How to fix
Compute the loss from the output of the model itself, and let the parent class handle what the pipeline sends back.

## When it can be wrong
A weight that is frozen in the checkpoint's own code has no gradient by design. Experts that no token of the batch chose have
none either; they are not counted.

## Seen in
The design of ROLL's Megatron critic ("Gradient flow through value head", "Loss computation matches DeepSpeed")
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.critic import GRADIENT_RTOL, RTOL, CriticComparison
from ckptcheck.text.formatting import count, join_truncated


@rule("HEAD009", "critic-gradient-gap", severity="error", on="critic")
def check(critic: CriticComparison) -> Iterator[Problem]:
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
