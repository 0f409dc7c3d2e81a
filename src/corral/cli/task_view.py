"""What the commands about tasks share: how a task is named, who speaks, how a file is read."""

from collections.abc import Callable
from typing import Any

import click

from corral.cli.app import App, Columns, read_body
from corral.cli.render import readable
from corral.kernel.errors import Invalid

as_agent = click.option("--agent", metavar="NAME", help="Who says it; $CORRAL_AGENT by default.")
in_project = click.option(
    "--project", metavar="ID|DIR", help="Whose graph; that of this directory by default."
)
with_reason = click.option("--reason", metavar="TEXT", help="Why, for the record.")
with_fence = click.option("--fence", type=int, help="The number that the claim gave.")


def project_of(app: App, given: str | None) -> str:
    """The project that was named, else that of the current directory."""
    found = app.project_id(given or ".")
    assert found is not None
    return found


def id_of(app: App, task: str, project: str | None) -> str:
    """The id of a task that was named by its id, or by its key in a project."""
    if task.startswith("tsk_"):
        return task
    return app.store.tasks.get(task, project=app.project_id(project)).id


def on_task(function: Callable[..., Any]) -> Callable[..., Any]:
    """One task, by its id or key."""
    help = "Where several have that key."
    named = click.option("--project", metavar="ID|DIR", help=help)(function)
    return click.argument("task")(as_agent(named))


def read_list(file: str) -> Any:
    """What a JSON or YAML file says; `-` is standard input."""
    text = read_body(file if file == "-" else f"@{file}", False)
    if text.lstrip().startswith(("[", "{")):
        import msgspec

        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            raise Invalid(f"{file} is not JSON: {error}.") from None
    import yaml

    try:
        return _plain_values(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a 99th month, say
        raise Invalid(
            f"{file} is neither JSON nor YAML: {_said_of_yaml(error)}.", reason="not_json_or_yaml"
        ) from None


def _said_of_yaml(error: Exception) -> str:
    """What is wrong and where, in one line."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or problem is None:
        return " ".join(str(error).split())
    return f"{problem} (line {mark.line + 1}, column {mark.column + 1})"


def _plain_values(text: str) -> Any:
    """What YAML says, without aliases: a few of them stand for more than any memory holds."""
    import yaml

    loader = yaml.SafeLoader(text)
    compose = loader.compose_node

    def compose_node(parent: Any, index: Any) -> Any:
        if loader.check_event(yaml.AliasEvent):
            raise Invalid("The file has YAML aliases (*name); write the values out.")
        return compose(parent, index)

    loader.compose_node = compose_node
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def task_fields(app: App) -> Columns:
    """One task for a person; --json has all that is kept of it."""
    return (
        ("key", lambda task: task.key),
        ("title", lambda task: task.title),
        ("description", lambda task: task.description),
        ("state", lambda task: task.state),
        ("reason", lambda task: task.reason),
        ("needs", lambda task: ", ".join(task.depends_on) or None),
        ("role", lambda task: task.role),
        ("for", lambda task: app.agent_name(task.assignee_id)),
        ("doer", lambda task: app.agent_name(task.agent_id)),
        ("run", lambda task: task.run_id),
        ("directory", lambda task: task.dir),
        ("files", lambda task: ", ".join(task.files) or None),
        ("check", lambda task: task.check_command),
        ("lead", lambda task: task.lead),
        ("priority", lambda task: task.priority),
        ("declared", lambda task: readable("created_at", task.created_at)),
        ("started", lambda task: readable("started_at", task.started_at)),
        ("submitted", lambda task: readable("submitted_at", task.submitted_at)),
        ("ended", lambda task: readable("ended_at", task.ended_at)),
        ("says", lambda task: task.evidence and task.evidence.text),
        ("commits", lambda task: task.evidence and (", ".join(task.evidence.commits) or None)),
        ("shows", lambda task: task.evidence and (", ".join(task.evidence.files) or None)),
        ("ran", lambda task: task.evidence and _ran(task.evidence.commands)),
        ("checked", lambda task: task.evidence and _ran(task.evidence.checks)),
        ("project", lambda task: app.project_name(task.project_id)),
        ("id", lambda task: task.id),
    )


def _ran(commands: Any) -> str | None:
    return "; ".join(f"{ran.command} (exit code {ran.exit_code})" for ran in commands) or None
