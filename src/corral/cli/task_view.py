"""Shared by the commands about tasks: options, arguments, data files, and the fields of a task."""

from collections.abc import Callable
from typing import Any

import click

from corral.cli.columns import Fields
from corral.cli.context import App
from corral.cli.parameters import read_body
from corral.cli.render import format_field
from corral.kernel.errors import Invalid

agent_option = click.option(
    "--agent",
    metavar="NAME",
    help="Agent to act as (default: the agent of the run, else $CORRAL_AGENT, else you).",
)
project_option = click.option(
    "--project", metavar="ID|DIR", help="Project (default: that of the current directory)."
)
reason_option = click.option("--reason", metavar="TEXT", help="Reason, for the event log.")
fence_option = click.option(
    "--fence", type=int, help="Fencing token printed by `claim` (default: do not check it)."
)


def resolve_project(app: App, project: str | None) -> str:
    """Return the id of the given project, else that of the current directory."""
    id = app.project_id(project or ".")
    assert id is not None
    return id


def resolve_task(app: App, task: str, project: str | None) -> str:
    """Return the id of a task that is given by id, or by its key in a project."""
    if task.startswith("tsk_"):
        return task
    return app.store.tasks.get(task, project=app.project_id(project)).id


def task_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument TASK (an id or a key), `--project` and `--agent`."""
    help = "Project of TASK, if several projects have a task with this key."
    with_project = click.option("--project", metavar="ID|DIR", help=help)(function)
    return click.argument("task")(agent_option(with_project))


# -- data files --------------------------------------------------------------------------------


def read_data_file(file: str) -> Any:
    """Read a JSON or YAML file; `-` is standard input. Raises Invalid."""
    text = read_body(file if file == "-" else f"@{file}", False)
    if text.lstrip().startswith(("[", "{")):
        import msgspec

        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            raise Invalid(f"{file} is not valid JSON: {error}.") from None
    import yaml

    try:
        return _load_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: an invalid date
        raise Invalid(
            f"{file} is neither JSON nor YAML: {_yaml_problem(error)}.", reason="not_json_or_yaml"
        ) from None


def _yaml_problem(error: Exception) -> str:
    """Describe a YAML error and its position in one line."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or problem is None:
        return " ".join(str(error).split())
    return f"{problem} (line {mark.line + 1}, column {mark.column + 1})"


def _load_yaml(text: str) -> Any:
    """Load YAML without aliases: nested aliases can expand to any size ("billion laughs")."""
    import yaml

    loader = yaml.SafeLoader(text)
    compose = loader.compose_node

    def compose_node(parent: Any, index: Any) -> Any:
        if loader.check_event(yaml.AliasEvent):
            raise Invalid("YAML aliases (*name) are not supported. Write the values out.")
        return compose(parent, index)

    loader.compose_node = compose_node
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


# -- display -----------------------------------------------------------------------------------


def task_fields(app: App) -> Fields:
    """Return the fields of a task for people; `--json` has all fields."""
    return (
        ("key", lambda task: task.key),
        ("title", lambda task: task.title),
        ("description", lambda task: task.description),
        ("state", lambda task: task.state),
        ("reason", lambda task: task.reason),
        ("depends on", lambda task: ", ".join(task.depends_on) or None),
        ("role", lambda task: task.role),
        ("assignee", lambda task: app.agent_name(task.assignee_id)),
        ("agent", lambda task: app.agent_name(task.agent_id)),
        ("run", lambda task: task.run_id),
        ("directory", lambda task: task.dir),
        ("files", lambda task: ", ".join(task.files) or None),
        ("check", lambda task: task.check_command),
        ("lead", lambda task: task.lead),
        ("priority", lambda task: task.priority),
        ("declared", lambda task: format_field("created_at", task.created_at)),
        ("started", lambda task: format_field("started_at", task.started_at)),
        ("submitted", lambda task: format_field("submitted_at", task.submitted_at)),
        ("ended", lambda task: format_field("ended_at", task.ended_at)),
        ("evidence", lambda task: task.evidence and task.evidence.text),
        ("commits", lambda task: task.evidence and (", ".join(task.evidence.commits) or None)),
        (
            "evidence files",
            lambda task: task.evidence and (", ".join(task.evidence.files) or None),
        ),
        ("commands", lambda task: task.evidence and _format_commands(task.evidence.commands)),
        ("checks", lambda task: task.evidence and _format_commands(task.evidence.checks)),
        ("project", lambda task: app.project_name(task.project_id)),
        ("id", lambda task: task.id),
    )


def _format_commands(commands: Any) -> str | None:
    return "; ".join(f"{each.command} (exit code {each.exit_code})" for each in commands) or None
