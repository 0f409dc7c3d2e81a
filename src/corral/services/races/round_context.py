"""The arguments that all steps of a round share, and helpers for attempts."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple, TypeVar

from corral.db.database import Database
from corral.domain.races import round_steps
from corral.domain.races.model import Attempt, AttemptState, Race, Round
from corral.domain.settings import ops as settings
from corral.kernel.errors import Conflict

T = TypeVar("T")


class RoundContext(NamedTuple):
    """A race and one of its rounds, for the driver that holds the lease of the round."""

    race: Race
    round: Round
    """The round with its attempts as last read."""
    lease: Round
    """The round as acquired, with the fencing token of the lease."""

    def list_attempts(self, state: AttemptState) -> list[Attempt]:
        """List the attempts of the round in a state."""
        return [attempt for attempt in self.round.attempts if attempt.state is state]


def fail_attempt(database: Database, context: RoundContext, attempt: Attempt, reason: str) -> None:
    """End an attempt as failed; does nothing if it has ended meanwhile."""
    with suppress(Conflict):
        database.write(lambda tx: round_steps.mark_failed(tx, context.lease, attempt, reason))


def run_parallel(
    database: Database, race: Race, attempts: Sequence[Attempt], action: Callable[[Attempt], T]
) -> list[T]:
    """Call `action` for each attempt, on up to `races.max_concurrent_checks` threads."""
    if not attempts:
        return []
    limit = database.read(
        lambda tx: int(
            settings.get_value(tx, "races.max_concurrent_checks", project=race.project_id)
        )
    )
    with ThreadPoolExecutor(min(limit, len(attempts))) as pool:
        return list(pool.map(action, attempts))
