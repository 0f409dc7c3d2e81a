"""Folders that are written whole or not at all, with a list of what is in them.

    TARGET/manifest.json     path, size, sha256 and mode of everything else
    TARGET/round-1-winner/   the files of a commit, byte for byte
    TARGET/logs/…            other files

It is made in a folder beside, synced to disk and renamed. Whatever a crash leaves is a folder with
a name that `leftovers` finds.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

MANIFEST = "manifest.json"


class Entry(msgspec.Struct, frozen=True):
    path: str
    """From the target; bytes that are no text are written as `%XX`, and so is `%` itself."""
    size: int
    sha256: str
    """Of its bytes; of the target's text for a link."""
    mode: str
    """As git writes it: 100644, 100755, 120000 (a link), 160000 (a submodule, left out)."""


class Manifest(msgspec.Struct, frozen=True):
    entries: list[Entry]
    commits: dict[str, str]
    """The commit of each tree, by the folder it is in."""


class TreeOf(NamedTuple):
    """The files of a commit."""

    repository: str
    commit: str


def export(
    target: Path,
    *,
    trees: Mapping[str, TreeOf],
    files: Mapping[str, Path | bytes | Iterable[bytes]],
    existing: Literal["refuse", "replace"] = "refuse",
) -> Manifest:
    """Write commits' trees and other files, each below a path of its own, and the manifest.

    A target that is there is left alone when it is the same already; otherwise it is Refused, or
    replaced when `existing` says so and it is an export that nobody has changed since. Refused, and
    nothing is written, for a link that leads out of its tree, a path that climbs, a name twice, a
    source that is no plain file; also when the disk is full: what was begun is taken away.
    """
    raise NotImplementedError


def verify(target: Path) -> list[str]:
    """What differs from the manifest, in words; empty when all is as it was written."""
    raise NotImplementedError


def leftovers(folder: Path) -> list[Path]:
    """What crashes have left beside the exports in a folder, and nobody writes any more."""
    raise NotImplementedError


def sweep(folder: Path) -> list[Path]:
    """Remove them; an export that was about to be replaced is put back. Gives what was removed."""
    raise NotImplementedError
