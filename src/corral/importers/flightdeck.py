"""flightdeck: crews of agents over one database of 24 tables."""

from corral.importers.flightdeck_crew import TABLES as CREW
from corral.importers.flightdeck_talk import TABLES as TALK
from corral.importers.flightdeck_work import TABLES as WORK
from corral.importers.mapping import Tool

TOOL = Tool(
    "flightdeck",
    "crews of agents: tasks, locks, decisions, chats, memory",
    {"agent_roster": ("agent_id", "role"), "dag_tasks": ("lead_id", "depends_on")},
    (*CREW, *WORK, *TALK),
)
