"""Moving a store to another place: who must be gone first, and the steps in their order."""

from functools import partial

import msgspec

from corral import config
from corral.api.outputs import bring, is_whole, sealed
from corral.api.runs import Runs
from corral.api.store import active_runs
from corral.db import connect
from corral.db.database import Database, Told, silent
from corral.db.move_target import void_target
from corral.db.store_move import Move, alone
from corral.db.store_move import stay as remain
from corral.db.store_move_record import find
from corral.domain.nodes import ops as nodes
from corral.domain.nodes.model import NodeState
from corral.kernel.errors import Invalid, Refused, StoreUnavailable


class Moved(msgspec.Struct, frozen=True):
    """What was moved, and where it is now."""

    url: str
    tables: int
    rows: int


def move(database: Database, url: str, told: Told | None) -> Moved:
    """Fence the store, copy and compare it, and switch; or go on with a move that was begun."""
    with database.seeing_every_phase():
        return _move(database, url, told)


def _move(database: Database, url: str, told: Told | None) -> Moved:
    if config.is_afar(url):
        raise Invalid(
            "A store moves to a database; give sqlite:////path or postgresql://….",
            reason="not_a_database",
        )

    def open_target() -> Database:
        probe = getattr(database, "_probe", None)
        return connect(config.store_url(url), actor=database.actor, probe=probe)

    going = Move(database, open_target)
    try:
        if not going.begun:
            _refuse_while_used(database)
            if going.target.keeps_output:
                _bring_outputs(database)
        going.prepare()
        going.fence()
        if not going.arrived:  # else it is in use there, and the fence must stay
            try:
                _refuse_while_used(database)
            except Refused:
                going.give_up()
                raise
        try:
            rows = going.copy(told or silent)
            going.switch()
        except StoreUnavailable as error:
            raise StoreUnavailable(
                f"{error.message.removesuffix(_UNTOUCHED)} Nobody writes to {database.url} until "
                f"the same `corral db move` is done; `corral db move --cancel` gives it up.",
                **error.details,
            ) from error
        return Moved(going.target.url, len(rows), sum(rows.values()))
    finally:
        going.close()


_UNTOUCHED = " Nothing was changed."
"""What an engine says of its transaction; of a move it is not true."""


def _bring_outputs(database: Database) -> None:
    """Take the sealed files of this machine into the store before it moves to where output belongs
    to it: then they are copied and compared as everything is, and read from every machine."""
    for row in database.read(lambda tx: [*sealed(tx)]):
        if not database.read(partial(is_whole, row=row)):
            database.write(partial(bring, row=row), repeatable=True)


def stay(database: Database) -> bool:
    """Take down the fence, unless the other place is in use already; False: there is none."""
    with database.seeing_every_phase(), alone(database):
        return _stay(database)


def _stay(database: Database) -> bool:
    found = find(database)
    if found is None or found.phase != "leaving":
        return False
    try:
        target = connect(found.url, actor=database.actor, create=False)
    except StoreUnavailable as error:
        if error.reason != "missing":
            raise Refused(
                f"Whether {found.url} is in use already cannot be told ({error.message}); see that "
                "it can be reached.",
                url=found.url,
            ) from error
    else:
        try:
            void_target(target, found.move)
        finally:
            target.close()
    remain(database)
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
            f"A daemon serves this store on {', '.join(serving)}; end it there with `corral down`.",
            nodes=serving,
            reason="daemon_running",
        )
    runs = Runs(database)
    going = [run.id for run in active_runs(database) if run.is_live and not _is_over(runs, run.id)]
    if going:
        others = f" and {len(going) - 3} more" if len(going) > 3 else ""
        raise Refused(
            f"Still running, and writing to this store: {', '.join(going[:3])}{others}; wait until "
            f"that is over, or stop it (`corral stop {going[0]}`).",
            runs=going,
            reason="runs_active",
        )


def _is_over(runs: Runs, id: str) -> bool:
    """Whether a run's processes are gone; under the fence that cannot be written down any more."""
    try:
        return not runs.refreshed(runs.get(id)).is_live
    except StoreUnavailable as error:
        if error.reason != "moved":
            raise
        return True
