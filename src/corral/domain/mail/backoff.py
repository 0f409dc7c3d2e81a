"""When to try again: a ladder of pauses, each a little off so that failures do not come in step."""

import random
from collections.abc import Callable, Sequence

SPREAD = 0.1


def pause_ms(
    ladder: Sequence[int], failures: int, chance: Callable[[], float] = random.random
) -> int:
    """The pause after the n-th failure (from 1); the ladder's last rung repeats."""
    rung = ladder[min(failures, len(ladder)) - 1]
    return int(rung * (1 + SPREAD * chance()))
