"""`corral show`: show any record by its id."""

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from corral.cli.click_classes import Command
from corral.cli.context import App, pass_app
from corral.cli.run_refresh import refresh_run
from corral.kernel.errors import Invalid, NotFound

if TYPE_CHECKING:
    from corral.api import Corral
    from corral.domain.runs.model import Run

# Prefix of an id -> how to get the record.
KINDS: dict[str, Callable[["Corral", str], Any]] = {
    "run": lambda store, id: refresh_run(store, id),
    "ses": lambda store, id: store.sessions.get(id),
    "agt": lambda store, id: store.agents.get(id),
    "prj": lambda store, id: store.projects.get(id),
    "let": lambda store, id: store.mail.get(id),
    "sch": lambda store, id: store.schedules.get(id),
    "qst": lambda store, id: store.questions.get(id),
    "dec": lambda store, id: store.decisions.get(id),
    "nte": lambda store, id: store.notes.get(id),
    "grp": lambda store, id: store.groups.get(id),
    "nod": lambda store, id: store.nodes.get(id),
    "chg": lambda store, id: store.charges.get(id),
    "rac": lambda store, id: store.races.get(id),
    "tsk": lambda store, id: store.tasks.get(id),
    "dlg": lambda store, id: store.delegations.get(id),
    "lck": lambda store, id: store.locks.get(id),
    "alr": lambda store, id: store.alerts.get(id),
    "chn": lambda store, id: store.channels.get(id),
    "plc": lambda store, id: store.places.get(id),
    "snd": lambda store, id: store.senders.get(id),
    "wir": lambda store, id: store.wirings.get(id),
    "dst": lambda store, id: store.destinations.get(id),
    "req": lambda store, id: store.host_requests.get(id),
    "msg": lambda store, id: store.messages.get(id),
}


@click.command(
    "show",
    cls=Command,
    examples=["corral show run_01abc", "corral show login", "corral show let_12"],
)
@click.argument("id")
@pass_app
def command(app: App, id: str) -> None:
    """Show any record by its id, or an active run by its name.

    The id can be shortened to a unique prefix. --json shows all fields.
    """
    prefix, underscore, _ = id.partition("_")
    get = KINDS.get(prefix) if underscore else KINDS["run"]  # without a prefix: a run's name
    if get is None:
        prefixes = ", ".join(f"{kind}_" for kind in KINDS)
        raise Invalid(f"Invalid id {id!r}: expected an id that begins with {prefixes}.")
    from corral.cli.commands.ps import run_fields
    from corral.cli.task_view import task_fields

    fields = {KINDS["run"]: run_fields, KINDS["tsk"]: task_fields}.get(get)
    record = get(app.store, id) if underscore else _find_run(app.store, id)
    if app.json and get is KINDS["run"]:
        record = _run_with_launch(app.store, record)
    app.show(record, fields(app) if fields else None)


def _find_run(store: "Corral", name: str) -> "Run":
    try:
        return refresh_run(store, name)
    except NotFound as error:
        message = (
            f"No record or run named {name}. Give an id such as run_01abc, or the name of a run."
        )
        raise NotFound(message, **error.details) from None


def _run_with_launch(store: "Corral", run: "Run") -> dict[str, Any]:
    """Return a run with its launch parameters, its environment and its resource samples.

    `launch` is null for a recorded or imported run: Corral did not start it.
    """
    import msgspec

    launch = None
    with suppress(NotFound):
        launch = store.runs.get_launch(run.id)
    return msgspec.structs.asdict(run) | {
        "launch": launch,
        "samples": store.runs.samples(run.id),
    }
