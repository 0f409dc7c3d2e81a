"""flightdeck: crews of agents in one database of 24 tables."""

from corral.importers.mappings.flightdeck_agents import TABLES as AGENTS
from corral.importers.mappings.flightdeck_groups import TABLES as GROUPS
from corral.importers.mappings.flightdeck_tasks import TABLES as TASKS
from corral.importers.mappings.types import ToolMapping

TOOL = ToolMapping(
    "flightdeck",
    "crews of agents: tasks, locks, decisions, chats, memory",
    {"agent_roster": ("agent_id", "role"), "dag_tasks": ("lead_id", "depends_on")},
    (*AGENTS, *TASKS, *GROUPS),
)
