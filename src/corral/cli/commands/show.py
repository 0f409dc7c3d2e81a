from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from corral.cli.app import App, Verb, pass_app, run_as_it_is
from corral.kernel.errors import Invalid, NotFound

if TYPE_CHECKING:
    from corral.api import Corral
    from corral.domain.runs.model import Run

# The beginning of an id tells what it is the id of.
KINDS: dict[str, Callable[["Corral", str], Any]] = {
    "run": lambda store, id: run_as_it_is(store, id),
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
    "req": lambda store, id: store.requests.get(id),
    "msg": lambda store, id: store.messages.get(id),
}


@click.command("show", cls=Verb)
@click.argument("id")
@pass_app
def command(app: App, id: str) -> None:
    """Show anything by its id, which may be shortened: run_…, ses_…, let_12 …; a run also by name.

    --json shows everything that is kept of it.
    """
    kind, underscore, _ = id.partition("_")
    find = KINDS.get(kind) if underscore else KINDS["run"]  # a live run by its name
    if find is None:
        raise Invalid(
            f"{id!r} does not say what it is; ids begin with {', '.join(f'{k}_' for k in KINDS)}."
        )
    from corral.cli.commands.ps import run_fields
    from corral.cli.task_view import task_fields

    fields = {KINDS["run"]: run_fields, KINDS["tsk"]: task_fields}.get(find)
    record = find(app.store, id)
    if app.json and find is KINDS["run"]:
        record = _whole_run(app.store, record)
    app.show(record, fields(app) if fields else None)


def _whole_run(store: "Corral", run: "Run") -> dict[str, Any]:
    """A run with what it was started with, the environment it found, and its resource samples.

    `launch` is null for a recorded or imported run: Corral did not start it.
    """
    import msgspec

    launch = None
    with suppress(NotFound):
        launch = store.runs.launch_of(run.id)
    return msgspec.structs.asdict(run) | {
        "launch": launch,
        "samples": store.runs.samples(run.id),
    }
