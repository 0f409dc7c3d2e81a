"""The progress of whole races: advance one, wait for one, or hand it to another process."""

from concurrent.futures import ThreadPoolExecutor

from corral.adapters.processes import process
from corral.db.database import Database
from corral.domain.races import queries, round_steps
from corral.domain.races.model import Race
from corral.kernel.errors import NotYet
from corral.services.races import driver
from corral.services.wait import wait_until

MIN_INTERVAL = 0.25  # seconds between two advances of a race that is waited for
MAX_CONCURRENT = 4


def get_race(database: Database, race: str) -> Race:
    """Return a race; raises NotFound."""
    return database.read(lambda tx: queries.get(tx, race))


def advance_race(database: Database, race_ref: str) -> Race:
    """Do everything that can be done for a race now; see `Races.advance`."""
    race = get_race(database, race_ref)
    if race.host == process.host():
        # A list, so that each round is driven, whatever an earlier one returned.
        while any(
            [driver.advance(database, round.id) for round in race.rounds if round.needs_driver]
        ):
            race = get_race(database, race.id)
    return get_race(database, race.id)


def advance_open_races(database: Database) -> int:
    """Advance every race of this machine; returns the number of rounds that changed."""
    rounds = database.read(
        lambda tx: round_steps.list_active_rounds(tx, process.host()), mode="one"
    )
    if not rounds:
        return 0
    with ThreadPoolExecutor(min(MAX_CONCURRENT, len(rounds))) as pool:
        return sum(pool.map(lambda round: driver.advance(database, round.id), rounds))


def wait_for_race(database: Database, race_ref: str, *, timeout_ms: int | None) -> Race:
    """Drive a race until it has ended or a person has to choose; raises NotYet on timeout."""
    latest: Race

    def advance_until_idle() -> Race | None:
        nonlocal latest
        latest = advance_race(database, race_ref)
        return None if any(round.needs_driver for round in latest.rounds) else latest

    # `advance_race` commits, which ends the sleep: without an interval the loop would spin.
    race = wait_until(
        database, advance_until_idle, timeout_ms=timeout_ms, min_interval=MIN_INTERVAL
    )
    if race is None:
        round = latest.latest
        raise NotYet(
            f"Round {round.number} of {latest.id} is still {round.state}.",
            id=latest.id,
            state=round.state,
        )
    return race


def hand_over(database: Database, race_ref: str) -> bool:
    """Hand a race to the daemon of this machine, or to a new process; see `Races.hand_over`."""
    from corral.adapters import daemon_process
    from corral.adapters.processes.subprocesses import spawn_corral

    race = get_race(database, race_ref)
    is_active = race.host == process.host() and any(round.needs_driver for round in race.rounds)
    if not is_active or daemon_process.find_daemon(database.url) is not None:
        return False
    # It drives the race until a person is needed. If it dies, the next driver continues.
    spawn_corral(database.address, "race", "wait", race.id, "--json")
    return True
