"""SQL of agents, their versions and tool grants."""

from corral.db.listing import Listing
from corral.db.lookup import IdColumn
from corral.db.stateful_table import StatefulTable
from corral.db.statement import Query, Statement, columns_of
from corral.domain.agents.model import TRANSITIONS, Agent, AgentRow, AgentVersion, ToolGrant
from corral.kernel.pagination import LAST_NUMBER

IDS = IdColumn("agent", "agt", "agents")
AGENTS = StatefulTable(AgentRow, TRANSITIONS, table="agents")

_AGENT = columns_of(
    Agent, id="agents.id", created_at="agents.created_at", updated_at="agents.updated_at"
)
_JOINED = """
    agents JOIN agent_versions
        ON agent_versions.agent_id = agents.id AND agent_versions.number = agents.version
"""

GET = Query(Agent, f"SELECT {_AGENT} FROM {_JOINED} WHERE agents.id = :id")

BY_NAME = Query(Agent, f"SELECT {_AGENT} FROM {_JOINED} WHERE agents.name = :name")


def _list(condition: str) -> Listing[Agent]:
    query = Query(
        Agent,
        f"""
        SELECT {_AGENT} FROM {_JOINED} WHERE {condition} agents.name > :after
        ORDER BY agents.name LIMIT :limit
    """,
    )
    return Listing(query, start={"after": ""}, key=lambda agent: (agent.name,))


LIST_ACTIVE = _list("agents.state = 'active' AND")
LIST_ALL = _list("")

_VERSION = columns_of(AgentVersion)

ADD_VERSION = Statement(f"""
    INSERT INTO agent_versions ({_VERSION})
    VALUES (:agent_id, :number, :role, :provider, :model, :command, :instructions, :workspace,
            :limits, :hash, :now, :actor)
""")

VERSION = Query(
    AgentVersion,
    f"SELECT {_VERSION} FROM agent_versions WHERE agent_id = :agent_id AND number = :number",
)

VERSIONS = Listing(
    Query(
        AgentVersion,
        f"""
        SELECT {_VERSION} FROM agent_versions WHERE agent_id = :agent_id AND number < :before
        ORDER BY number DESC LIMIT :limit
    """,
    ),
    start={"before": LAST_NUMBER},
    key=lambda version: (version.number,),
)

_GRANT = columns_of(ToolGrant)

SET_GRANT = Query(
    ToolGrant,
    f"""
    INSERT INTO tool_grants ({_GRANT}) VALUES (:agent_id, :tool, :allowed, :now, :actor)
    ON CONFLICT (agent_id, tool) DO UPDATE SET allowed = excluded.allowed,
        updated_at = excluded.updated_at, updated_by = excluded.updated_by
    WHERE tool_grants.allowed <> excluded.allowed
    RETURNING {_GRANT}
""",
)

GRANT = Query(
    ToolGrant, f"SELECT {_GRANT} FROM tool_grants WHERE agent_id = :agent_id AND tool = :tool"
)

DELETE_GRANT = Query(
    ToolGrant,
    f"DELETE FROM tool_grants WHERE agent_id = :agent_id AND tool = :tool RETURNING {_GRANT}",
)

GRANTS = Query(
    ToolGrant,
    f"SELECT {_GRANT} FROM tool_grants WHERE agent_id = :agent_id ORDER BY tool LIMIT :limit",
)

COUNT_GRANTS = Statement("SELECT count(*) FROM tool_grants WHERE agent_id = :agent_id")

NAMES_TAKEN = Statement("SELECT name FROM agents WHERE name {is_listed}")
