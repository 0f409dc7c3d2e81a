"""Moves of a store to another database.

A move blocks writes to the old store, copies and compares all rows, and then switches: from
then on the old store redirects to the new one. Every step can be repeated after a crash.
"""

from functools import partial

import msgspec

from corral import config
from corral.db import connect
from corral.db.database import Database
from corral.db.move_target import void_target
from corral.db.store_move import StoreMove, keep_here, require_move_lock
from corral.db.store_move_record import read_store_move
from corral.db.types import ProgressCallback, no_progress
from corral.domain.nodes import ops as nodes
from corral.domain.nodes.model import NodeState
from corral.kernel.errors import Invalid, Refused, StoreUnavailable
from corral.services.runs.lifecycle import refresh
from corral.services.runs.outputs import (
    is_stored_completely,
    iterate_sealed,
    store_sealed_files,
)
from corral.services.runs.queries import get_run
from corral.services.store.backup import iter_active_runs


class MoveResult(msgspec.Struct, frozen=True):
    """The result of a move."""

    url: str
    tables: int
    rows: int


def move_store(database: Database, url: str, on_progress: ProgressCallback | None) -> MoveResult:
    """Move a store, or resume a move that was interrupted; see `Store.move`."""
    with database.allow_moved():
        return _move(database, url, on_progress)


def _move(database: Database, url: str, on_progress: ProgressCallback | None) -> MoveResult:
    if config.is_remote(url):
        raise Invalid(
            "The target of a move is sqlite:////path or postgresql://….", reason="not_a_database"
        )

    def open_target() -> Database:
        return connect(config.store_url(url), actor=database.actor, probe=database.probe)

    transfer = StoreMove(database, open_target)
    try:
        if not transfer.begun:
            _refuse_while_used(database)
            if transfer.target.stores_output:
                _store_outputs(database)
        transfer.prepare()
        transfer.block_writes()
        if not transfer.arrived:  # otherwise the target is in use, and the write guard must stay
            try:
                _refuse_while_used(database)
            except Refused:
                transfer.give_up()
                raise
        try:
            rows = transfer.copy(on_progress or no_progress)
            transfer.switch()
        except StoreUnavailable as error:
            raise StoreUnavailable(
                f"{error.message.removesuffix(_UNTOUCHED)} Writes to {database.url} are blocked. "
                "Repeat the same `corral db move`, or cancel it with `corral db move --cancel`.",
                **error.details,
            ) from error
        return MoveResult(transfer.target.url, len(rows), sum(rows.values()))
    finally:
        transfer.close()


_UNTOUCHED = " Nothing was changed."
"""The end of an engine's error message about its transaction, which is not true for a move."""


def _store_outputs(database: Database) -> None:
    """Store the sealed files of this machine before a move to an engine that keeps output.

    Then they are copied and compared like all rows, and every machine can read them.
    """
    for row in database.read(lambda tx: [*iterate_sealed(tx)]):
        if not database.read(partial(is_stored_completely, row=row)):
            database.write(partial(store_sealed_files, row=row), repeatable=True)


def cancel_move(database: Database) -> bool:
    """Remove the write guard, unless the target is in use already; returns False without a move."""
    with database.allow_moved(), require_move_lock(database):
        return _cancel_move(database)


def _cancel_move(database: Database) -> bool:
    record = read_store_move(database)
    if record is None or record.phase != "leaving":
        return False
    try:
        target = connect(record.url, actor=database.actor, create=False)
    except StoreUnavailable as error:
        if error.reason != "missing":
            raise Refused(
                f"Cannot check whether {record.url} is in use already: {error.message} Make it "
                "reachable and try again.",
                url=record.url,
            ) from error
    else:
        try:
            void_target(target, record.move_id)
        finally:
            target.close()
    keep_here(database)
    return True


def _refuse_while_used(database: Database) -> None:
    now = database.clock.now()
    serving = [
        node.name
        for node in database.read(lambda tx: nodes.list_nodes(tx, limit=1_000)).items
        if node.state is NodeState.UP and node.lease_until > now
    ]
    if serving:
        raise Refused(
            f"A daemon serves this store on {', '.join(serving)}. Stop it there with "
            "`corral down`.",
            nodes=serving,
            reason="daemon_running",
        )
    live = [
        run.id
        for run in iter_active_runs(database)
        if run.is_live and not _has_ended(database, run.id)
    ]
    if live:
        others = f" and {len(live) - 3} more" if len(live) > 3 else ""
        raise Refused(
            f"Runs still write to this store: {', '.join(live[:3])}{others}. Wait until they have "
            f"ended, or stop them (`corral stop {live[0]}`).",
            runs=live,
            reason="runs_active",
        )


def _has_ended(database: Database, id: str) -> bool:
    """Whether a run has ended, or its end cannot be recorded because writes are blocked."""
    try:
        return not refresh(database, get_run(database, id)).is_live
    except StoreUnavailable as error:
        if error.reason != "moved":
            raise
        return True
