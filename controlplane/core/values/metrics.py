"""Which values of a metric are better, by its name."""

from __future__ import annotations

_LOWER_IS_BETTER = (
    *("loss", "error", "mae", "mse", "rmse", "mape", "msle", "divergence", "crossentropy"),
    *("hinge", "poisson", "logcosh", "log_cosh", "perplexity", "false_", "learning_rate"),
)


def is_higher_better(name: str) -> bool:
    """Return whether a higher value is better; true of names that are not those of losses."""
    lower = name.lower()
    return not any(part in lower for part in _LOWER_IS_BETTER)
