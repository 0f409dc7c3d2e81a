"""The root of the command line: loads commands, runs them, maps errors to exit codes."""

import os
import sys
from importlib import import_module
from typing import Any

import click

from corral.cli.click_classes import common_options, literal_option
from corral.cli.context import App

# Command -> module and one-line help. A module is imported only when its command is called.
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("run", "Run an agent or any command under supervision."),
    "ps": ("ps", "List runs."),
    "logs": ("logs", "Show the output of a run."),
    "attach": ("attach", "Attach to the terminal of a run."),
    "send": ("send", "Send input or a message to a run."),
    "stop": ("stop", "Stop a run and all its processes."),
    "resume": ("resume", "Resume a run or a session."),
    "show": ("show", "Show any record by its id."),
    "wait": ("wait", "Wait for a run to exit."),
    "recover": ("recover", "Record the end of dead runs, and start queued runs that are due."),
    "init": ("init", "Set up a directory as a project."),
    "project": ("project", "Manage projects: directories that agents work in."),
    "agent": ("agent", "Manage agents, their instructions and permissions."),
    "session": ("session", "Manage sessions: conversations with agents."),
    "checkpoint": ("checkpoint", "Manage checkpoints for agent frameworks."),
    "search": ("search", "Search sessions, output and notes."),
    "task": ("task", "Manage tasks and their dependencies."),
    "delegation": ("delegation", "Delegate work to an agent and collect the result."),
    "plan": ("plan", "Publish and show the plans of agents."),
    "progress": ("progress", "Report and show the progress of agents."),
    "team": ("team", "Start a team of agents from a file."),
    "race": ("race", "Run several attempts in parallel and select a winner."),
    "lock": ("lock", "Lock files, and install hooks that enforce locks."),
    "commit": ("commit", "Commit only the files that you have locked."),
    "hook": ("hook", "Run a lock hook; called by agent CLIs and git."),
    "ask": ("ask", "Ask a question and wait for the answer."),
    "question": ("question", "List and answer questions."),
    "decision": ("decision", "Record, propose and confirm decisions."),
    "group": ("group", "Chat in groups of agents and people."),
    "note": ("note", "Manage notes for an agent, a project or everyone."),
    "chat": ("chat", "Chat with an agent in this terminal."),
    "channel": ("channel", "Connect chat platforms."),
    "place": ("place", "Manage places: the chats on channels."),
    "wiring": ("wiring", "Choose which agents receive messages from which chats."),
    "destination": ("destination", "Choose which chats an agent may send to."),
    "message": ("message", "Send and inspect messages on channels."),
    "request": (
        "request",
        "Show the actions that agents have requested.",
    ),
    "sender": ("sender", "Approve or block accounts on channels."),
    "person": ("person", "Manage people and their roles."),
    "mail": ("mail", "Put, claim and acknowledge letters in mailboxes."),
    "timer": ("timer", "Send a letter at a later time."),
    "schedule": ("schedule", "Send letters on a recurring schedule."),
    "stats": ("stats", "Show success rates, durations, tokens and cost of runs."),
    "charge": ("charge", "Show token usage and cost."),
    "budget": ("budget", "Limit spending."),
    "alert": ("alert", "Send alerts when runs crash, fail, wait or finish."),
    "events": ("events", "Show the event log."),
    "setting": ("setting", "Show and change settings."),
    "secret": ("secret", "Manage references to secrets."),
    "token": ("token", "Manage access tokens for the HTTP API."),
    "mcp": ("mcp", "Serve the MCP tools for agents on standard input and output."),
    "node": ("node", "List the nodes that serve the store."),
    "import": ("import_", "Import transcripts and data from other agent tools."),
    "db": ("db", "Check, back up, restore, move, query and prune the store."),
    "up": ("up", "Start the daemon, the HTTP API and the dashboard."),
    "down": ("down", "Stop the daemon; runs continue."),
    "status": ("status", "Show the state of the daemon and its nodes."),
    "doctor": ("doctor", "Check the installation and repair problems."),
    "completion": ("completion", "Print the shell completion script."),
}

# The first command of each section of the help -> the section's heading.
SECTIONS = {
    "run": "Runs",
    "init": "Projects, agents and sessions",
    "task": "Teamwork",
    "ask": "Questions, chat and memory",
    "mail": "Mail and schedules",
    "stats": "Reports and cost",
    "setting": "Configuration",
    "db": "Store and daemon",
}

# Names from other tools, and verbs without their noun -> the command to suggest.
SUGGESTIONS = {
    "answer": ["question answer"],
    "backup": ["db backup"],
    "cat": ["logs"],
    "kill": ["stop"],
    "list": ["ps"],
    "ls": ["ps"],
    "merge": ["race merge"],
    "prune": ["db prune"],
    "restore": ["db restore"],
    "sql": ["db sql"],
    "start": ["run"],
    "tail": ["logs"],
    "top": ["ps"],
    "verify": ["db verify"],
}


class Root(click.Group):
    """The `corral` command; imports the module of a command when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"corral.cli.commands.{COMMANDS[cmd_name][0]}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS:
            from difflib import get_close_matches

            matches = SUGGESTIONS.get(args[0]) or get_close_matches(args[0], COMMANDS, 1)
            hint = f"Did you mean {matches[0]}?" if matches else "List commands: `corral --help`."
            ctx.fail(f"Unknown command {args[0]!r}. {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, (_, help) in COMMANDS.items():
            if name in SECTIONS:
                rows = sections.setdefault(SECTIONS[name], [])
            rows.append((name, help))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def _print_version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        from corral import __version__

        click.echo(f"corral {__version__}")
        context.exit()


@click.pass_context
def _show_overview(context: click.Context) -> None:
    """Show the overview when `corral` is called without a command."""
    if context.invoked_subcommand is None:
        from corral.cli.commands.overview import show_overview

        show_overview(context.ensure_object(App))


root = Root(
    "corral",
    callback=_show_overview,
    invoke_without_command=True,
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_print_version,
            help="Show the version and exit.",
        ),
        literal_option(),
        *common_options(),
    ],
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Run AI agents and other commands under supervision, and keep a durable record of "
    "them.\n\nWithout a command, show what is running, what needs your input, what failed and what "
    "today cost.",
    epilog="Store URLs: sqlite:///relative.db, sqlite:////absolute.db, postgresql://user@host/db, "
    "or a daemon at http://host:7717. Ids can be shortened to a unique prefix. Durations are "
    "written as 90s, 10m, 1h30m or 7d.",
)


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code. Errors never print a traceback."""
    app = App()
    try:
        code = root.main(arguments, prog_name="corral", standalone_mode=False, obj=app)
        if sys.stdout is not None:  # None: the shell closed standard output
            sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0 if not arguments else 2
    except click.ClickException as error:
        _print_error("usage", _usage_message(error), {}, arguments)
        return 2
    except click.exceptions.Exit as error:
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 130
    except (BrokenPipeError, SystemExit):
        # The reader of standard output is gone (click turns EPIPE into SystemExit). Redirect to
        # /dev/null so that the interpreter's final flush does not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _report_os_error(error, arguments)
    except Exception as error:
        return _report_exception(error, arguments)
    finally:
        app.close()


def _report_os_error(error: OSError, arguments: list[str]) -> int:
    """Report a file that cannot be opened; an error without a file name is standard output's."""
    if error.filename is None:
        _print_error("output", f"Cannot write the output: {error.strerror}.", {}, arguments)
        return 1
    from corral.kernel.errors import Refused

    file = os.fsdecode(error.filename) if isinstance(error.filename, bytes) else str(error.filename)
    message = f"Cannot open {file}: {error.strerror}."
    _print_error(Refused.code, message, {"path": file}, arguments)
    return Refused.exit_status


def _report_exception(error: Exception, arguments: list[str]) -> int:
    from corral.kernel.errors import CorralError

    if isinstance(error, CorralError):
        _print_error(error.code, error.message, error.details, arguments)
        return error.exit_status
    if os.environ.get("CORRAL_DEBUG"):
        raise error
    _print_error(
        "internal",
        f"Internal error: {type(error).__name__}: {error}. Please report it with the traceback "
        "that CORRAL_DEBUG=1 prints.",
        {},
        arguments,
    )
    return 1


def _usage_message(error: click.ClickException) -> str:
    message = error.format_message().replace("\n", " ")
    message += "" if message.endswith((".", "?", "?)")) else "."
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "corral"
    return message if "--help" in message else f"{message} See `{command} --help`."


def _print_error(code: str, message: str, details: dict[str, Any], arguments: list[str]) -> None:
    """Print an error to standard error, as JSON when `--json` is among the options."""
    from corral.kernel.display_text import escape_unprintable

    # The arguments after `--` belong to the program that Corral runs.
    end = arguments.index("--") if "--" in arguments else len(arguments)
    if "--json" in arguments[:end]:
        import msgspec

        answer = {"error": {"code": code, "message": message, "details": details}}
        try:
            text = msgspec.json.encode(answer, enc_hook=str)
        except UnicodeEncodeError:  # the message quotes an argument that is not valid UTF-8
            import json

            text = json.dumps(answer, default=str, ensure_ascii=False).encode(errors="replace")
        sys.stderr.write(text.decode() + "\n")
    else:
        sys.stderr.write(f"corral: {escape_unprintable(message)}\n")
