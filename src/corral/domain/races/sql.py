"""SQL of races, rounds, attempts, verdicts, selections and grafts."""

from corral.db.listing import Listing
from corral.db.lookup import IdColumn
from corral.db.retention import PrunableRows
from corral.db.stateful_table import StatefulTable
from corral.db.statement import Query, Statement, columns_of
from corral.domain.races.model import (
    ATTEMPT_TRANSITIONS,
    RACE_TRANSITIONS,
    ROUND_TRANSITIONS,
    VERDICT_TRANSITIONS,
    Attempt,
    Graft,
    JudgeVerdict,
    Race,
    Round,
    Selection,
    WinRate,
)
from corral.kernel.pagination import LAST_ID

_RACE = columns_of(Race, omit=("rounds", "spent_micros"))
_ROUND = columns_of(Round, omit=("attempts", "verdicts", "selections", "grafts"))
_ATTEMPT = columns_of(Attempt, omit=("score", "rank", "is_winner"), commit="commit_id")
_VERDICT = columns_of(JudgeVerdict)
_SELECTION = columns_of(Selection, commit="commit_id")
_GRAFT = columns_of(Graft, commit="commit_id")

IDS = IdColumn("race", "rac", "races")
ROUND_IDS = IdColumn("round", "rnd", "rounds")
ATTEMPT_IDS = IdColumn("attempt", "att", "attempts")

RACES = StatefulTable(Race, RACE_TRANSITIONS, table="races", columns=_RACE, project="project_id")
ROUNDS = StatefulTable(
    Round, ROUND_TRANSITIONS, table="rounds", columns=_ROUND, project="project_id"
)
ATTEMPTS = StatefulTable(
    Attempt,
    ATTEMPT_TRANSITIONS,
    table="attempts",
    columns=_ATTEMPT,
    project="project_id",
    extra_columns=("commit_id",),
)
VERDICTS = StatefulTable(JudgeVerdict, VERDICT_TRANSITIONS, table="verdicts", project="project_id")

# -- queries -----------------------------------------------------------------------------------

# Repeats the columns of the index: with ORDER BY id alone, PostgreSQL scans the primary key.
_IN_STATE = Query(
    Race,
    f"""
    SELECT {_RACE} FROM races WHERE state >= :state AND state <= :state AND id < :before
    ORDER BY state DESC, id DESC LIMIT :limit
""",
)

LISTS = {
    (): RACES.newest_first(),
    ("project",): RACES.newest_first("project_id = :project"),
    ("state",): Listing(_IN_STATE, start={"before": LAST_ID}, key=lambda race: (race.id,)),
}

LATEST_OF_PROJECT = Statement("""
    SELECT id FROM races WHERE project_id = :project ORDER BY id DESC LIMIT 1
""")

ROUNDS_OF_RACE = Query(
    Round, f"SELECT {_ROUND} FROM rounds WHERE race_id = :race_id ORDER BY number"
)
ATTEMPTS_OF_RACE = Query(
    Attempt, f"SELECT {_ATTEMPT} FROM attempts WHERE race_id = :race_id ORDER BY id"
)
ATTEMPTS_OF_ROUND = Query(
    Attempt, f"SELECT {_ATTEMPT} FROM attempts WHERE round_id = :round_id ORDER BY number"
)
VERDICTS_OF_RACE = Query(
    JudgeVerdict, f"SELECT {_VERDICT} FROM verdicts WHERE race_id = :race_id ORDER BY id"
)
VERDICTS_OF_ROUND = Query(
    JudgeVerdict, f"SELECT {_VERDICT} FROM verdicts WHERE round_id = :round_id ORDER BY number"
)
SELECTIONS = Query(
    Selection,
    f"SELECT {_SELECTION} FROM selections WHERE round_id {{is_listed}} ORDER BY round_id, number",
)
GRAFTS = Query(
    Graft, f"SELECT {_GRAFT} FROM grafts WHERE round_id {{is_listed}} ORDER BY round_id, id"
)

RUNNING_IN_RUN = Query(
    Attempt, f"SELECT {_ATTEMPT} FROM attempts WHERE run_id = :run_id AND state = 'running'"
)
HAS_ATTEMPT = Statement("SELECT id FROM attempts WHERE run_id = :run_id AND state = 'running'")

WITH_WORKTREE = Query(
    Attempt,
    f"""SELECT {_ATTEMPT} FROM attempts
    WHERE cleaned_at IS NULL AND worktree > :after ORDER BY worktree LIMIT :limit""",
)

# -- the lease of a round ----------------------------------------------------------------------

# needs_driver: only rounds in which a driver still has work to do.
ACTIVE_ROUNDS = Query(
    Round,
    f"""SELECT {_ROUND} FROM rounds
    WHERE needs_driver = 1 AND host = :host AND id > :after ORDER BY id LIMIT :limit""",
)

# Leases emit no events. A round can be acquired when it is free, when its lease has expired, when
# this driver held it before, or when its driver is known to be dead. The new fence rejects
# the writes of an earlier driver.
ACQUIRE_ROUND = Query(
    Round,
    f"""
    UPDATE rounds SET owner = :owner, fence = fence + 1, lease_until = :until
    WHERE id = :id AND (
        lease_until IS NULL OR lease_until <= :now OR owner = :owner OR owner = :dead_owner
    )
    RETURNING {_ROUND}
""",
)
RENEW_LEASE = Query(
    Round,
    f"""
    UPDATE rounds SET lease_until = :until WHERE id = :id AND fence = :fence RETURNING {_ROUND}
""",
)
RELEASE_ROUND = Statement("""
    UPDATE rounds SET owner = NULL, lease_until = NULL WHERE id = :id AND fence = :fence
""")
SET_NEEDS_DRIVER = Statement("UPDATE rounds SET needs_driver = :needs_driver WHERE id = :id")

# -- updates that change no state --------------------------------------------------------------

SET_COMMIT = Statement("""
    UPDATE attempts
    SET commit_id = :commit_id, files = :files, insertions = :insertions, deletions = :deletions
    WHERE id = :id
""")
SET_CLEANED = Statement("UPDATE attempts SET cleaned_at = :now WHERE id = :id")
SET_MERGED = Query(
    Race, f"UPDATE races SET merged_commit = :merged_commit WHERE id = :id RETURNING {_RACE}"
)
SET_PLAN = Query(
    Race,
    f"""UPDATE races SET plan = :plan, budget_micros = :budget_micros WHERE id = :id
    RETURNING {_RACE}""",
)
ADD_SELECTION = Statement("""
    INSERT INTO selections
        (round_id, number, verb, attempt_id, commit_id, ranked_first_id, selected_by, reason,
         selected_at)
    VALUES (:round_id, :number, :verb, :attempt_id, :commit_id, :ranked_first_id, :selected_by,
            :reason, :now)
""")
ADD_GRAFT = Query(
    Graft,
    f"""
    INSERT INTO grafts
        (id, round_id, attempt_id, files, commit_id, kept, checks, reason, created_by, created_at)
    VALUES (:id, :round_id, :attempt_id, :files, :commit_id, :kept, :checks, :reason, :created_by,
            :now)
    RETURNING {_GRAFT}
""",
)


# -- statistics ----------------------------------------------------------------------------------


def _build_win_rates(key: str) -> Query[WinRate]:
    """Count attempts and wins of decided rounds by a column. `passed` is NULL without checks."""
    return Query(
        WinRate,
        f"""
        SELECT {key} AS key, count(*) AS attempts,
            count(CASE WHEN attempts.state = 'completed' AND coalesce(passed, 1) = 1 THEN 1 END)
                AS passed,
            count(CASE WHEN rounds.winner_id = attempts.id THEN 1 END) AS wins,
            CAST(sum(cost_micros) AS {{integer}}) AS cost_micros,
            count(*) - count(cost_micros) AS unpriced
        FROM rounds JOIN attempts ON attempts.round_id = rounds.id
        WHERE rounds.state = 'completed' AND rounds.ended_at >= :since
        GROUP BY {key} ORDER BY wins DESC, key LIMIT :limit
    """,
    )


WIN_RATES = {
    "agent": _build_win_rates("attempts.agent"),
    "model": _build_win_rates("attempts.model"),
    "provider": _build_win_rates("attempts.provider"),
    "variation": _build_win_rates("attempts.variation"),
}

# -- retention ---------------------------------------------------------------------------------

PRUNABLE = PrunableRows(
    "races",
    setting="races.retention_ms",
    ended={
        "ended_at": """
            ended_at IS NOT NULL AND ended_at < :before
            -- No worktree is left on disk: without its row, nothing would ever remove it.
            AND NOT EXISTS (
                SELECT 1 FROM attempts
                WHERE attempts.race_id = races.id AND attempts.cleaned_at IS NULL
            )"""
    },
    batch=100,
)
IDS_OF_PROJECT = Statement("SELECT id FROM races WHERE project_id = :project LIMIT :limit")
_OF_RACES = "round_id IN (SELECT id FROM rounds WHERE race_id {is_listed})"
DELETE_PARTS = {
    "selections": Statement(f"DELETE FROM selections WHERE {_OF_RACES} RETURNING round_id"),
    "grafts": Statement(f"DELETE FROM grafts WHERE {_OF_RACES} RETURNING id"),
    "verdicts": Statement("DELETE FROM verdicts WHERE race_id {is_listed} RETURNING id"),
    "attempts": Statement("DELETE FROM attempts WHERE race_id {is_listed} RETURNING id"),
    "rounds": Statement("DELETE FROM rounds WHERE race_id {is_listed} RETURNING id"),
}
DELETE = Statement("DELETE FROM races WHERE id {is_listed} RETURNING id")

# For imports: the winner of an imported round.
SET_IMPORTED_WINNER = Statement("""
    UPDATE rounds SET winner_id = :attempt, decided_by = :by WHERE id = :id
""")

ROUND_OWNERS = Statement("SELECT id, race_id, project_id FROM rounds WHERE id {is_listed}")
