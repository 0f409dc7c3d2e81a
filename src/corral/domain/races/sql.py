from corral.db.lookup import IdColumn
from corral.db.retention import Scoped
from corral.db.statement import Query, Statement
from corral.db.transitions import StateTable
from corral.domain.races.model import (
    ATTEMPT_MOVES,
    RACE_MOVES,
    ROUND_MOVES,
    VERDICT_MOVES,
    Attempt,
    Choice,
    Graft,
    Race,
    Round,
    Verdict,
    Winning,
)

_RACE = """id, project_id, name, prompt, state, repository, inside, private, branch, base_commit,
    host, plan, budget_micros, merged_commit, reason, created_at, created_by, ended_at"""
_ROUND = """id, race_id, project_id, number, state, parent_id, base_attempt_id, base_commit, prompt,
    budget_micros, winner_id, winner_commit, reason, decided_by, goes_on, host, owner, fence,
    lease_until, created_at, ended_at"""
_ATTEMPT = """id, race_id, round_id, project_id, number, state, agent, agent_version, provider,
    model, variation, prompt, branch, worktree, port, sandbox, run_id, session_id, tries,
    commit_id AS "commit", checked_tree, passed, checks, files, insertions, deletions,
    earlier_micros, cost_micros, reason, created_at, started_at, ended_at, cleaned_at"""
_VERDICT = """id, race_id, round_id, project_id, number, state, judge, model, run_id, labels,
    prompt_hash, truncated, ranking, reason, cost_micros, created_at, ended_at"""
_CHOICE = """round_id, number, verb, attempt_id, commit_id AS "commit", ranked_first_id, by, reason,
    at"""
_GRAFT = """id, round_id, attempt_id, files, commit_id AS "commit", kept, checks, reason, by, at"""

IDS = IdColumn("race", "rac", "races")
ROUND_IDS = IdColumn("round", "rnd", "rounds")
ATTEMPT_IDS = IdColumn("attempt", "att", "attempts")

RACES = StateTable(Race, RACE_MOVES, table="races", columns=_RACE, project="project_id")
ROUNDS = StateTable(Round, ROUND_MOVES, table="rounds", columns=_ROUND, project="project_id")
ATTEMPTS = StateTable(
    Attempt, ATTEMPT_MOVES, table="attempts", columns=_ATTEMPT, project="project_id"
)
VERDICTS = StateTable(
    Verdict, VERDICT_MOVES, table="verdicts", columns=_VERDICT, project="project_id"
)

# -- looking -----------------------------------------------------------------------------------

_RACES = f"SELECT {_RACE} FROM races WHERE"
_BEFORE = "id < :before ORDER BY id DESC LIMIT :limit"

LISTS = {
    (): Query(Race, f"{_RACES} {_BEFORE}"),
    ("project",): Query(Race, f"{_RACES} project_id = :project AND {_BEFORE}"),
    # In the words of its index: ordered by id alone, PostgreSQL would walk along all ids.
    ("state",): Query(
        Race,
        f"""{_RACES} state >= :state AND state <= :state AND id < :before
        ORDER BY state DESC, id DESC LIMIT :limit""",
    ),
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
    Verdict, f"SELECT {_VERDICT} FROM verdicts WHERE race_id = :race_id ORDER BY id"
)
VERDICTS_OF_ROUND = Query(
    Verdict, f"SELECT {_VERDICT} FROM verdicts WHERE round_id = :round_id ORDER BY number"
)
CHOICES = Query(
    Choice, f"SELECT {_CHOICE} FROM choices WHERE round_id {{is_listed}} ORDER BY round_id, number"
)
GRAFTS = Query(
    Graft, f"SELECT {_GRAFT} FROM grafts WHERE round_id {{is_listed}} ORDER BY round_id, id"
)

OF_RUN = Query(
    Attempt, f"SELECT {_ATTEMPT} FROM attempts WHERE run_id = :run_id AND state = 'running'"
)
HAS_ATTEMPT = Statement("SELECT id FROM attempts WHERE run_id = :run_id AND state = 'running'")

IN_PLACE = Query(
    Attempt,
    f"""SELECT {_ATTEMPT} FROM attempts
    WHERE cleaned_at IS NULL AND worktree > :after ORDER BY worktree LIMIT :limit""",
)

# -- driving -----------------------------------------------------------------------------------

OPEN_ROUNDS = Query(
    Round,
    f"""SELECT {_ROUND} FROM rounds
    WHERE goes_on = 1 AND host = :host AND id > :after ORDER BY id LIMIT :limit""",
)

# A lease taken or renewed is no event.
TAKE = Query(
    Round,
    f"""
    UPDATE rounds SET owner = :owner, fence = fence + 1, lease_until = :until
    WHERE id = :id AND (
        lease_until IS NULL OR lease_until <= :now OR owner = :owner OR owner = :gone
    )
    RETURNING {_ROUND}
""",
)
RENEW = Query(
    Round,
    f"""
    UPDATE rounds SET lease_until = :until WHERE id = :id AND fence = :fence RETURNING {_ROUND}
""",
)
GIVE_BACK = Statement("""
    UPDATE rounds SET owner = NULL, lease_until = NULL WHERE id = :id AND fence = :fence
""")
SET_GOES_ON = Statement("UPDATE rounds SET goes_on = :goes_on WHERE id = :id")

# -- what is no state --------------------------------------------------------------------------

SET_TREE = Statement("""
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
ADD_CHOICE = Statement("""
    INSERT INTO choices
        (round_id, number, verb, attempt_id, commit_id, ranked_first_id, by, reason, at)
    VALUES (:round_id, :number, :verb, :attempt_id, :commit_id, :ranked_first_id, :by, :reason, :at)
""")
ADD_GRAFT = Query(
    Graft,
    f"""
    INSERT INTO grafts (id, round_id, attempt_id, files, commit_id, kept, checks, reason, by, at)
    VALUES (:id, :round_id, :attempt_id, :files, :commit_id, :kept, :checks, :reason, :by, :at)
    RETURNING {_GRAFT}
""",
)


# -- how attempts fare -------------------------------------------------------------------------


def _winning(key: str) -> Query[Winning]:
    """Attempts of decided rounds, by who made them."""
    return Query(
        Winning,
        f"""
        SELECT {key} AS key, count(*) AS attempts,
            count(CASE WHEN attempts.state = 'completed' AND coalesce(passed, 1) = 1 THEN 1 END)
                AS passed,
            count(CASE WHEN rounds.winner_id = attempts.id THEN 1 END) AS wins,
            CAST(sum(cost_micros) AS {{integer}}) AS cost_micros,
            count(*) - count(cost_micros) AS unknown
        FROM rounds JOIN attempts ON attempts.round_id = rounds.id
        WHERE rounds.state = 'completed' AND rounds.ended_at >= :since
        GROUP BY {key} ORDER BY wins DESC, key LIMIT :limit
    """,
    )


WINNING = {
    "agent": _winning("attempts.agent"),
    "model": _winning("attempts.model"),
    "provider": _winning("attempts.provider"),
    "variation": _winning("attempts.variation"),
}

# -- forgetting --------------------------------------------------------------------------------

# What is over and has no worktree left: a worktree must stay known as long as it is there.
_FORGETTABLE = """
    ended_at IS NOT NULL AND ended_at < :before AND {whose} AND NOT EXISTS (
        SELECT 1 FROM attempts WHERE attempts.race_id = races.id AND attempts.cleaned_at IS NULL
    )
"""
PRUNABLE = Scoped(f"""
    SELECT id FROM races WHERE {_FORGETTABLE} ORDER BY ended_at, id LIMIT :limit {{skip_locked}}
""")
COUNT_PRUNABLE = Scoped(f"SELECT count(*) FROM races WHERE {_FORGETTABLE}")
OF_PROJECT = Statement("SELECT id FROM races WHERE project_id = :project LIMIT :limit")
_OF_RACES = "round_id IN (SELECT id FROM rounds WHERE race_id {is_listed})"
FORGET = {
    "choices": Statement(f"DELETE FROM choices WHERE {_OF_RACES} RETURNING round_id"),
    "grafts": Statement(f"DELETE FROM grafts WHERE {_OF_RACES} RETURNING id"),
    "verdicts": Statement("DELETE FROM verdicts WHERE race_id {is_listed} RETURNING id"),
    "attempts": Statement("DELETE FROM attempts WHERE race_id {is_listed} RETURNING id"),
    "rounds": Statement("DELETE FROM rounds WHERE race_id {is_listed} RETURNING id"),
    "races": Statement("DELETE FROM races WHERE id {is_listed} RETURNING id"),
}

# Of a round that was taken in, the winner that it had.
NAME_WINNER = Statement("""
    UPDATE rounds SET winner_id = :attempt, decided_by = :by WHERE id = :id
""")

RACES_OF = Statement("SELECT id, race_id, project_id FROM rounds WHERE id {is_listed}")
