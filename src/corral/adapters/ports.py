"""Ports of this machine for programs that are told which one to use.

A port is taken for an owner until it is given back, for all processes that use the same folder: it
is written down there under a lock. One that somebody else listens on is passed over.
"""

from pathlib import Path

FIRST = 20_000
LAST = 29_999  # below the ports that the system itself gives out


def take(
    folder: Path, owner: str, count: int = 1, *, first: int = FIRST, last: int = LAST
) -> list[int]:
    """Free loopback ports for an owner; the same ones when it asks again. Refused when there are
    not as many left."""
    raise NotImplementedError


def give_back(folder: Path, owner: str) -> None:
    """They are free again; no harm for an owner that has none."""
    raise NotImplementedError


def taken(folder: Path) -> dict[str, list[int]]:
    """Who has which."""
    raise NotImplementedError
