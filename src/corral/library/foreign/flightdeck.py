"""flightdeck: crews of agents over one database of 24 tables."""

from corral.library.foreign.flightdeck_crew import TABLES as CREW
from corral.library.foreign.flightdeck_talk import TABLES as TALK
from corral.library.foreign.flightdeck_work import TABLES as WORK
from corral.library.foreign.mapping import Tool

TOOL = Tool(
    "flightdeck",
    "crews of agents: tasks, locks, decisions, chats, memory",
    {"agent_roster": ("agent_id", "role"), "dag_tasks": ("lead_id", "depends_on")},
    (*CREW, *WORK, *TALK),
)
