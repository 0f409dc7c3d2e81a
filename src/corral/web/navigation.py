"""The navigation of the dashboard, and its keyboard shortcuts."""

from typing import NamedTuple


class NavLink(NamedTuple):
    title: str
    path: str
    key: str
    """The key to press after g."""
    icon: str


class NavGroup(NamedTuple):
    title: str
    links: tuple[NavLink, ...]


NAVIGATION = (
    NavGroup(
        "Home",
        (
            NavLink("Overview", "/", "o", "home"),
            NavLink("Inbox", "/inbox", "i", "inbox"),
            NavLink("Search", "/search", "f", "search"),
        ),
    ),
    NavGroup(
        "Work",
        (
            NavLink("Runs", "/runs", "r", "play"),
            NavLink("Races", "/races", "w", "race"),
            NavLink("Tasks", "/board", "b", "board"),
            NavLink("Schedules", "/schedules", "t", "clock"),
            NavLink("Projects", "/projects", "p", "folder"),
        ),
    ),
    NavGroup(
        "Agents",
        (
            NavLink("Agents", "/agents", "a", "agent"),
            NavLink("Sessions", "/sessions", "s", "chat"),
            NavLink("Locks", "/locks", "l", "lock"),
            NavLink("Notes", "/notes", "n", "note"),
        ),
    ),
    NavGroup(
        "Messages",
        (
            NavLink("Chat", "/chat", "d", "talk"),
            NavLink("Channels", "/messaging", "v", "channel"),
            NavLink("Groups", "/groups", "g", "group"),
            NavLink("Mail", "/mail", "m", "mail"),
        ),
    ),
    NavGroup(
        "System",
        (
            NavLink("Costs", "/costs", "c", "coin"),
            NavLink("Events", "/events", "e", "pulse"),
            NavLink("Health", "/health", "h", "heart"),
            NavLink("Settings", "/settings", "x", "sliders"),
        ),
    ),
)
