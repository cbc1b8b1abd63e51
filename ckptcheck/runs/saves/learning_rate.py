"""What a run's saves say of its learning rate: where it was zero, weights that do not move are as they should be."""

from __future__ import annotations

from ckptcheck.runs.saves.save import Save


def is_rate_zero(before: Save, after: Save) -> bool:
    """Whether the learning rate is known to have been zero from one save to the other."""
    logged = [rate for step, rate in after.logged_rates.items() if before.number < int(step) <= after.number]
    if logged:
        return not any(logged)
    rates = [*before.rates.values(), *after.rates.values()]
    return bool(before.rates and after.rates) and not any(rates)
