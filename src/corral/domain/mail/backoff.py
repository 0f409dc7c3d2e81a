"""Retry back-off: a list of delays, with jitter so that failures do not retry in lockstep.

The setting `mail.backoff_ms` is the list. With its default, a letter is retried 5, 10, 20, 40 and
then 80 seconds after a failure, plus up to 10 % of jitter.
"""

import random
from collections.abc import Callable, Sequence

JITTER = 0.1
"""The largest fraction that is added to a delay."""


def compute_backoff_ms(
    delays: Sequence[int], failures: int, rand: Callable[[], float] = random.random
) -> int:
    """Return the delay after the n-th failure (from 1). The last delay repeats."""
    delay = delays[min(failures, len(delays)) - 1]
    return int(delay * (1 + JITTER * rand()))
