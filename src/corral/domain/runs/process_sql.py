"""The statements of `processes.py`."""

from corral.db.statement import Statement

_IDENTITY = """
    runs.id, runs.agent_id, agents.name, runs.session_id, runs.project_id
    FROM runs LEFT JOIN agents ON agents.id = runs.agent_id
"""

# By the agent's process, in any state of the run: pid, start and boot identify it.
# By the supervisor's process while the run is live: the agent may have ended and left other
# processes. Recorded runs are excluded: any user can record any process.
OF_PROCESSES = Statement(f"""
    SELECT runs.pid, runs.start_token, {_IDENTITY}
    WHERE runs.pid {{is_numbered}} AND runs.boot_id = :boot_id AND runs.mode <> 'recorded'
    UNION ALL
    SELECT runs.keeper_pid, runs.keeper_token, {_IDENTITY}
    WHERE runs.id > '' AND runs.ended_at IS NULL AND runs.keeper_pid {{is_numbered}}
      AND runs.boot_id = :boot_id AND runs.mode <> 'recorded'
""")

OF_ID = Statement(f"""
    SELECT runs.pid, runs.start_token, {_IDENTITY}
    WHERE runs.id = :id AND runs.ended_at IS NULL
""")

AT_WORK = Statement("""
    SELECT 1 FROM runs
    WHERE id > '' AND ended_at IS NULL AND state <> 'queued' AND mode <> 'recorded' LIMIT 1
""")
