"""The root of the command line: finds the noun, runs the verb, turns errors into exit codes."""

import os
import sys
from importlib import import_module
from typing import Any

import click

from corral.cli.app import App, common_options, literal_option

# Noun -> module and what stands beside it in the help. Nothing is imported until it is called.
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("run", "Run an agent or any command, tracked; -d in the background."),
    "ps": ("ps", "Runs and their true state."),
    "logs": ("logs", "What a run wrote; live with -f."),
    "attach": ("attach", "Take over a run's terminal; Ctrl-\\ detaches."),
    "send": ("send", "Type into a run, or hand it a message."),
    "stop": ("stop", "Stop a run with its whole process tree."),
    "resume": ("resume", "Go on where a run or a session stopped."),
    "show": ("show", "Anything by its id."),
    "wait": ("wait", "Wait for a run to end."),
    "recover": ("recover", "Find dead runs now, and say what was found."),
    "init": ("init", "Make this directory a project; --agents tells agents of Corral."),
    "project": ("project", "Directories that agents work in."),
    "agent": ("agent", "Agents: who they are, what they are told, what they may."),
    "session": ("session", "Conversations of agents, turn by turn."),
    "checkpoint": ("checkpoint", "States that frameworks keep of their threads."),
    "search": ("search", "Find what was said, printed or noted."),
    "task": ("task", "A project's graph of work: who does what, and what waits."),
    "delegation": ("delegation", "Work that one handed to another."),
    "plan": ("plan", "What agents say they will do."),
    "progress": ("progress", "How far agents say they have come."),
    "team": ("team", "Start a lead and workers from a file."),
    "race": ("race", "Several attempts at once; the winner goes on."),
    "lock": ("lock", "Locks on files: take, wait, release; hooks that keep to them."),
    "commit": ("commit", "Commit what you have locked, or name; nothing else."),
    "hook": ("hook", "What hooks of agent CLIs and git call; fast."),
    "ask": ("ask", "Ask something, and wait for the answer."),
    "question": ("question", "Questions that wait for an answer."),
    "decision": ("decision", "Choices that were recorded, and those to confirm."),
    "group": ("group", "Chats of agents and people; direct messages, broadcasts."),
    "note": ("note", "What is remembered: for an agent, a project, everyone."),
    "chat": ("chat", "Talk to an agent here."),
    "channel": ("channel", "Chat platforms that agents are reached by."),
    "place": ("place", "Chats on channels."),
    "wiring": ("wiring", "Which agent hears which chats, and when it answers."),
    "destination": ("destination", "Where agents may send to."),
    "message": ("message", "What was said on channels, both ways."),
    "request": ("request", "What agents ask of the host."),
    "sender": ("sender", "Accounts that speak on channels."),
    "person": ("person", "People on channels, and what they may do."),
    "mail": ("mail", "Letters: put, claim, acknowledge; dead letters."),
    "timer": ("timer", "Send a letter later, once."),
    "schedule": ("schedule", "Send a letter again and again."),
    "stats": ("stats", "Success, duration, tokens and cost of runs."),
    "charge": ("charge", "Tokens and money that agents use."),
    "budget": ("budget", "What may be spent."),
    "alert": ("alert", "Be told when runs crash, fail, wait or finish."),
    "events": ("events", "The record of all changes, live with -f."),
    "event": ("events", ""),
    "setting": ("setting", "Values you choose instead of the defaults."),
    "secret": ("secret", "Where secrets are to be found."),
    "token": ("token", "Who may call the HTTP API."),
    "mcp": ("mcp", "The tools of agents, on standard input and output."),
    "node": ("node", "Machines that serve this store."),
    "import": ("import_", "Bring in what Claude Code or Codex recorded."),
    "db": ("db", "The store: check, back up, restore, move, query, prune."),
    "up": ("up", "Start the daemon: loops, HTTP API, dashboard."),
    "down": ("down", "End the daemon; runs go on."),
    "status": ("status", "Is the daemon up, and which machines serve this store?"),
    "doctor": ("doctor", "Is everything as it should be?"),
    "completion": ("completion", "Shell completion for bash, zsh or fish."),
}

# What the help calls the commands from this one on.
SECTIONS = {
    "run": "Runs",
    "init": "Projects, agents, sessions",
    "task": "Working as a team",
    "ask": "Asking, deciding, talking, remembering",
    "mail": "Letters, now and later",
    "stats": "How it goes, what it costs",
    "setting": "Setting up",
    "db": "The store and the daemon",
}

EXIT_CODES = {
    "invalid": 2,
    "not_found": 3,
    "refused": 4,
    "ambiguous": 4,
    "conflict": 4,
    "illegal_move": 4,
    "held": 4,
    "no_room": 4,
    "store_unavailable": 5,
}


# What other programs call it, and verbs of which only one noun is meant.
OTHERS_WORDS = {
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
    def list_commands(self, context: click.Context) -> list[str]:
        return [name for name, (_, help) in COMMANDS.items() if help]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command = import_module(f"corral.cli.commands.{COMMANDS[name][0]}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS:
            from difflib import get_close_matches

            near = OTHERS_WORDS.get(args[0]) or get_close_matches(
                args[0], self.list_commands(context), 1
            )
            hint = f"did you mean {near[0]}?" if near else "`corral --help` lists what there is."
            context.fail(f"There is no command {args[0]!r}; {hint}")
        return super().resolve_command(context, args)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, (_, help) in COMMANDS.items():
            if name in SECTIONS:
                rows = sections.setdefault(SECTIONS[name], [])
            if help:
                rows.append((name, help))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def _version(context: click.Context, _: click.Parameter, given: bool) -> None:
    if given:
        from corral import __version__

        click.echo(f"corral {__version__}")
        context.exit()


@click.pass_context
def _overview(context: click.Context) -> None:
    """`corral` without a command shows what is going on."""
    if context.invoked_subcommand is None:
        from corral.cli.commands.overview import show_overview

        show_overview(context.ensure_object(App))


root = Root(
    "corral",
    callback=_overview,
    invoke_without_command=True,
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_version,
            help="Show the version.",
        ),
        literal_option(),
        *common_options(),
    ],
    context_settings={"help_option_names": ["-h", "--help"]},
    help="The system of record and the supervisor for AI agents.",
    epilog="Every list and record is JSON with --json. Ids may be shortened to a unique prefix.",
)


def run(arguments: list[str]) -> int:
    """Run one command line; gives back its exit code, never a traceback."""
    app = App()
    try:
        code = root.main(arguments, prog_name="corral", standalone_mode=False, obj=app)
        if sys.stdout is not None:  # a shell may have closed it
            sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0 if not arguments else 2
    except click.ClickException as error:
        _complain("usage", _usage(error), {}, arguments)
        return 2
    except click.exceptions.Exit as error:
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 130
    except (BrokenPipeError, SystemExit):
        # Whoever read our output has gone (click then exits by itself); the rest has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _out_of_reach(error, arguments)
    except Exception as error:
        return _answer(error, arguments)
    finally:
        app.close()


def _out_of_reach(error: OSError, arguments: list[str]) -> int:
    """A file that the system does not let us use, or, where it names none, our own output."""
    if error.filename is None:
        _complain("output", f"The answer could not be written ({error.strerror}).", {}, arguments)
        return 1
    file = os.fsdecode(error.filename) if isinstance(error.filename, bytes) else str(error.filename)
    said = f"Cannot open {file}: {error.strerror}."
    _complain("refused", said, {"path": file}, arguments)
    return EXIT_CODES["refused"]


def _answer(error: Exception, arguments: list[str]) -> int:
    from corral.kernel.errors import CorralError

    if isinstance(error, CorralError):
        _complain(error.code, error.message, error.details, arguments)
        return EXIT_CODES.get(error.code, 1)
    if os.environ.get("CORRAL_DEBUG"):
        raise error
    _complain(
        "internal",
        f"Corral made a mistake ({type(error).__name__}: {error}); please report it, with what "
        "CORRAL_DEBUG=1 prints.",
        {},
        arguments,
    )
    return 1


def _usage(error: click.ClickException) -> str:
    sentence = error.format_message().replace("\n", " ")
    sentence += "" if sentence.endswith((".", "?", "?)")) else "."
    context = getattr(error, "ctx", None)
    where = context.command_path if context else "corral"
    return sentence if "--help" in sentence else f"{sentence} See `{where} --help`."


def _complain(code: str, message: str, details: dict[str, Any], arguments: list[str]) -> None:
    from corral.kernel.text import printable

    if "--json" in arguments:
        import msgspec

        answer = {"error": {"code": code, "message": message, "details": details}}
        try:
            text = msgspec.json.encode(answer, enc_hook=str)
        except UnicodeEncodeError:  # it repeats an argument that is not UTF-8
            import json

            text = json.dumps(answer, default=str, ensure_ascii=False).encode(errors="replace")
        sys.stderr.write(text.decode() + "\n")
    else:
        sys.stderr.write(f"corral: {printable(message)}\n")
