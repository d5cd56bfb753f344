"""How the fuzzes of REST draw what they throw: from a fixed seed, so that a failure comes again by itself."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis

SEED = 1


def drawn(examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """For a test with `hypothesis.given`: it is run with so many examples, however long each takes."""
    settings = hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        return hypothesis.seed(SEED)(settings(test))

    return decorate
