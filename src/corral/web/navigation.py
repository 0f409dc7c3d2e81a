"""The one list of where people can go: the navigation, and the keys that lead there."""

from typing import NamedTuple


class Link(NamedTuple):
    title: str
    path: str
    key: str
    """Pressed after g."""
    icon: str


class Group(NamedTuple):
    title: str
    links: tuple[Link, ...]


NAVIGATION = (
    Group(
        "Now",
        (Link("Overview", "/", "o", "home"), Link("Events", "/events", "e", "pulse")),
    ),
    Group(
        "Work",
        (
            Link("Runs", "/runs", "r", "play"),
            Link("Races", "/races", "w", "race"),
            Link("Sessions", "/sessions", "s", "chat"),
            Link("Agents", "/agents", "a", "agent"),
            Link("Projects", "/projects", "p", "folder"),
        ),
    ),
    Group(
        "Team",
        (
            Link("Board", "/board", "b", "board"),
            Link("Inbox", "/inbox", "i", "inbox"),
            Link("Groups", "/groups", "g", "group"),
            Link("Locks", "/locks", "l", "lock"),
            Link("Notes", "/notes", "n", "note"),
        ),
    ),
    Group(
        "Post",
        (
            Link("Chat", "/chat", "d", "talk"),
            Link("Gateway", "/gateway", "v", "channel"),
            Link("Mail", "/mail", "m", "mail"),
            Link("Schedules", "/schedules", "t", "clock"),
        ),
    ),
    Group(
        "Books",
        (Link("Costs", "/costs", "c", "coin"), Link("Search", "/search", "f", "search")),
    ),
    Group(
        "House",
        (Link("Settings", "/settings", "x", "sliders"), Link("Health", "/health", "h", "heart")),
    ),
)
