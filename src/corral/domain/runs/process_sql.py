"""SQL of `processes`, apart from `sql` so that hooks import little."""

from corral.db.statement import Statement

_IDENTITY = """
    runs.id, runs.agent_id, agents.name, runs.session_id, runs.project_id
    FROM runs LEFT JOIN agents ON agents.id = runs.agent_id
"""

OF_PROCESSES = Statement(f"""
    -- By the agent's process, in any state of the run: pid, start token and boot id identify it.
    SELECT runs.pid, runs.start_token, {_IDENTITY}
    WHERE runs.pid {{is_numbered}} AND runs.boot_id = :boot_id
      -- Any user can record any process, so recorded runs prove nothing.
      AND runs.mode <> 'recorded'
    UNION ALL
    -- By the supervisor's process while the run is live: the agent may have exited and left
    -- other processes behind.
    SELECT runs.supervisor_pid, runs.supervisor_token, {_IDENTITY}
    -- The first two predicates repeat the condition of the partial index of live runs.
    WHERE runs.id > '' AND runs.ended_at IS NULL AND runs.supervisor_pid {{is_numbered}}
      AND runs.boot_id = :boot_id AND runs.mode <> 'recorded'
""")

OF_ID = Statement(f"""
    SELECT runs.pid, runs.start_token, {_IDENTITY}
    WHERE runs.id = :id AND runs.ended_at IS NULL
""")
