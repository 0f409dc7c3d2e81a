"""The statements of `processes.py`."""

from corral.db.statement import Statement

_WHOSE = """
    runs.id, runs.agent_id, agents.name, runs.session_id, runs.project_id
    FROM runs LEFT JOIN agents ON agents.id = runs.agent_id
"""

# By the agent's own process, whatever state the run is in: pid, start and boot prove that it is the
# same one. By the supervisor's process while the run goes on: the agent may have ended and left
# others behind. A recorded run is left out: anybody can record any process.
OF_PROCESSES = Statement(f"""
    SELECT runs.pid, runs.start_token, {_WHOSE}
    WHERE runs.pid {{is_numbered}} AND runs.boot_id = :boot_id AND runs.mode <> 'recorded'
    UNION ALL
    SELECT runs.keeper_pid, runs.keeper_token, {_WHOSE}
    WHERE runs.id > '' AND runs.ended_at IS NULL AND runs.keeper_pid {{is_numbered}}
      AND runs.boot_id = :boot_id AND runs.mode <> 'recorded'
""")

OF_ID = Statement(f"""
    SELECT runs.pid, runs.start_token, {_WHOSE}
    WHERE runs.id = :id AND runs.ended_at IS NULL
""")

AT_WORK = Statement("""
    SELECT 1 FROM runs
    WHERE id > '' AND ended_at IS NULL AND state <> 'queued' AND mode <> 'recorded' LIMIT 1
""")
