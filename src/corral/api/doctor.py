"""`corral doctor`: check everything that Corral needs, also when the store cannot be opened."""

from typing import TYPE_CHECKING

from corral import __version__, config
from corral.db.types import Finding
from corral.kernel.errors import CorralError
from corral.services.store import health

if TYPE_CHECKING:
    from corral.api import Corral


def examine(url: str | None = None, *, fix: bool = False) -> list[Finding]:
    """Check the program, the home directory and the store; `fix` repairs what is safe to repair.

    A store that cannot be opened is a finding, not an error.
    """
    findings = health.check_installation(fix=fix)
    from corral.api import open

    try:
        with open(url, create=False) as store:
            findings += _check_store(store, fix)
    except CorralError as error:
        # A store that does not exist yet is created on first use; one that was moved away is lost.
        missing = error.details.get("reason") == "missing" and "moved_from" not in error.details
        findings.append(Finding("store", "warning" if missing else "broken", error.message))
    return findings


def _check_store(store: "Corral", fix: bool) -> list[Finding]:
    findings = [Finding("store", "ok", f"{store.db.url} can be opened."), *store.db.check()]
    if config.is_remote(store.address):
        # Over HTTP: the doctor on the daemon's machine checks the rest.
        findings.append(health.check_durability(store.db.durability(), ()))
        return findings + health.check_nodes(store.nodes.list(limit=200).items)
    return findings + health.check_store(store._database, version=__version__, fix=fix)
