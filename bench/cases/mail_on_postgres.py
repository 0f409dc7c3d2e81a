"""Mail on PostgreSQL, four worker processes on one mailbox."""

from contextlib import ExitStack

from bench.crew import Crew
from bench.harness import Bar, Bench, Rates, Rival, Row
from bench.opponents import on_postgres

TITLE = "Mail on PostgreSQL, four worker processes"
ABOUT = """
    Four processes empty one mailbox on a server with fsync on. By hand it is psycopg with two
    prepared statements in autocommit on Corral's own tables: a claim with SKIP LOCKED, and one
    writing WITH that acknowledges and notes the event; two round trips, as few as it can be done
    in. By hand is 1. The peers have their own tables on the same server; procrastinate is driven
    by its own fetch and finish, without its worker's other duties, and PGMQ by the SQL functions
    that it installs.
"""
WORKERS = 4
BACKLOG = 10_000  # more than any of them takes in one shift


def measure(bench: Bench) -> list[Row]:
    seconds = bench.pick(1.5, 0.7)
    with ExitStack() as closing:
        by_hand, corral, procrastinate, pgmq = (
            _rival(bench, closing, contestant, seconds)
            for contestant in (
                on_postgres.BY_HAND,
                on_postgres.CORRAL,
                on_postgres.PROCRASTINATE,
                on_postgres.PGMQ,
            )
        )
        rounds = bench.pick(7, 3)
        raw = bench.compare(by_hand, [corral], rounds=rounds)
        peers = bench.compare(corral, [procrastinate, pgmq], rounds=bench.pick(5, 2))
    return [
        Row("claim + ack", raw.speed_of("Corral", "claim + ack"), Bar(">=", 0.7)),
        *(
            Row(
                "claim + ack on PostgreSQL, 4 workers",
                peers.speed_of_base_over(peer.name, "claim + ack"),
                Bar(">", 1),
                over=peer.name,
            )
            for peer in (procrastinate, pgmq)
        ),
    ]


def _rival(
    bench: Bench, closing: ExitStack, contestant: on_postgres.Contestant, seconds: float
) -> Rival:
    """A contestant with its database, its backlog and its workers."""
    url = bench.server.new_database()
    contestant.make(url)
    contestant.fill(url, BACKLOG)
    crew = closing.enter_context(Crew(WORKERS, contestant.hire, url))

    def sample() -> Rates:
        taken = sum(crew.shift(seconds))
        contestant.fill(url, taken)
        return {"claim + ack": taken / seconds}

    return Rival(contestant.name, sample)
