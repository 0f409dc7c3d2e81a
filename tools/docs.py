"""Writes the generated pages of docs/ from the live objects; `--check` only compares."""

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from corral.api.catalog import list_operations, resource_classes
from corral.cli.main import COMMANDS, SECTIONS, root
from corral.db.schema import tables
from corral.db.transitions import StatefulTable
from corral.importers.tools import TOOL_NAMES, find_tool
from corral.services.store.declarations import find_declarations

DOCS = Path(__file__).parent.parent / "docs"
NOTICE = "<!-- Written by `make docs` from the code. Do not edit. -->\n\n"

SCHEMA = """\
# The schema

The tables are a public read API: `corral db sql` and any SQL client may ask them. They are the
same on both engines; `serial` is a number that orders rows by arrival, `integer` has 64 bits,
`key` is text compared byte by byte, `json` is JSON text. Columns named `…_at` are milliseconds
since 1970 in UTC, `…_ms` are durations. Only Corral writes."""

STATES = """\
# States

A state changes only by a verb of its table. The tables below are compiled into the WHERE clause
of the one UPDATE that makes moves; a refused move says what was found and what would have been
allowed."""

LIBRARY = """\
# The library

`corral.open(url)` gives a store with one attribute for each room; every operation is one
transaction. Lists are pages (`.items`, `.next`), records are frozen structs, errors are in
`corral.errors`. The CLI has the same nouns and verbs: [cli.md](cli.md).

## A worker

```python
import corral
from corral.errors import Held

with corral.open() as store:
    while True:
        # Waits for a letter, up to a minute. Whoever dies from here on loses nothing.
        for letter in store.mail.claim("queue:builds", owner="worker-1", wait_ms=60_000):
            try:
                try:
                    work(letter.body)  # longer than 30 s: store.mail.renew(letter) now and then
                except Exception as error:
                    store.mail.fail(letter, str(error))  # again after a pause; dead at the limit
                else:
                    store.mail.ack(letter)
            except Held:
                pass  # the lease ran out and another worker has it: what we did does not count
```

A letter may be worked on twice, when a worker dies or loses its lease between the work and the
`ack`. For what must not be done twice, say `store.mail.doubt(letter)` just before it: after a
crash the letter is `unknown`, and waits for somebody who knows (`settle`). `ack_and_claim`
acknowledges and takes the next in one transaction."""

CLI = """\
# The command line

`corral [--store URL] [--json] COMMAND …`. `--store` and `--json` are accepted before and after the
command. With `--json` a command prints exactly one JSON value.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | the operation failed; `run` and `wait` exit with the code of the run |
| 2 | usage error or invalid input |
| 3 | not found |
| 4 | refused: conflict, illegal transition, held by another owner, ambiguous id |
| 5 | the store is unavailable |"""

MANUAL_HEAD = """\
.TH CORRAL 1 "" Corral "User Commands"
.SH NAME
corral \\- supervisor and system of record for AI agents
.SH SYNOPSIS
.B corral
[\\fB--store\\fR \\fIURL\\fR] [\\fB--json\\fR] \\fICOMMAND\\fR ...
.SH DESCRIPTION
Runs any agent CLI or command under supervision, runs several attempts in parallel and selects a
winner, lets teams of agents share tasks, locks, decisions, notes and mail, and connects agents to
chat platforms. Without a command, \\fBcorral\\fR shows what is running, what needs your input,
what failed and what today cost.
.PP
\\fBcorral\\fR \\fICOMMAND\\fR \\fB--help\\fR shows the options of a command.
With \\fB--json\\fR a command prints one JSON value.
.SH COMMANDS"""

MANUAL_FOOT = """\
.SH EXIT STATUS
.TP
.B 0
success
.TP
.B 1
the operation failed
.TP
.B 2
usage error or invalid input
.TP
.B 3
not found
.TP
.B 4
refused: conflict, illegal transition, held by another owner, or ambiguous id
.TP
.B 5
the store is unavailable
.PP
\\fBrun\\fR and \\fBwait\\fR exit with the exit code of the run.
.SH ENVIRONMENT
.TP
.B CORRAL_HOME
data directory
.TP
.B CORRAL_STORE
URL of the store: sqlite:///PATH, postgresql://USER@HOST/DATABASE, or the URL of a daemon
.TP
.B CORRAL_TOKEN
access token for the daemon
.TP
.B NO_COLOR
disable colours
.SH FILES
.TP
.I $CORRAL_HOME/corral.db
the default store
.TP
.I $CORRAL_HOME/runs
output of runs
.TP
.I $CORRAL_HOME/daemon.log
log of the daemon"""


IMPORTS = """\
# Imports from other tools

`corral import agent-yes|agents|flightdeck|multishot|nanoclaw PATH` imports the database of another
agent tool. PATH is the database file, or the folder in which the tool keeps it. An import from
nanoclaw includes the `v2-sessions` folder beside its database; the folder of one session can be
imported alone.

- **The source is not changed.** Corral reads a consistent copy of it, even while the tool writes.
- **One transaction.** The import is complete, or nothing is imported. On SQLite other writers wait
  meanwhile, so an import of more than 100,000 rows is refused while runs are active.
- **Each row once.** A row is identified by the tool, the source, its table and its own key. A
  second import adds only new rows. For a row that has changed since, the new values are stored in
  `import_origins`; the object that was created from it is not changed. A source is identified by
  its path; use `--name` if the database may move.
- **Nothing is dropped silently.** Values without a place in Corral are kept in
  `import_origins.unmapped`: unknown columns and tables, invalid values, and rows whose parent is
  missing. Problems are reported with a count and an example: invalid JSON, unknown states, invalid
  times, text with NUL bytes or that is not UTF-8, values that are too long, duplicate keys.
  `corral import rows` shows the object of each row, `--kept` the rows without an object.
- **Nothing is live.** Rows that were running have ended, with a reason. Pending work is ended or
  paused, channels and wirings are removed, destinations are revoked. Imports grant no permission.
- **No secrets.** Text that looks like a secret is redacted, and credentials are not imported.
- **Times** in one column may be seconds, milliseconds, finer units or text; the unit of a number is
  recognized by its size. A time in the future becomes the time of the import.
- **Conversations of nanoclaw** become turns, merged from the two files of a session by time.
  Attached files are copied into `$CORRAL_HOME/imports` and deleted with their session. A session
  file that is empty or damaged is skipped and reported; the others are imported.
- **Code in a source does not run.** Constraints, computed columns, views, triggers and virtual
  tables are not evaluated; computed columns and views are reported as left out. A value may have
  256 MB, and reading the next row may take 60 s.
- **Retention does not delete imported data.** The `retention_ms` settings apply only to data that
  Corral created. The report says how many imported rows retention would delete otherwise. To apply
  it, run `corral setting set imports.apply_retention true`.
- **A second import restores** objects that were deleted in Corral since, under the same id. Parts
  of an object (turns, log lines, members, tool grants) are restored only together with it.

The tables below list every table and column of each tool and its place in Corral.
`import_origins.row_id` means that the column identifies the row; several columns are named where a
value is stored in each of them."""


def schema() -> str:
    lines = [SCHEMA]
    for table in tables():
        lines += ["", f"## {table.name}", "", table.doc, ""]
        lines += ["| column | type | |", "|---|---|---|"]
        lines += [f"| `{c.name}` | {c.type} | {c.doc} |" for c in table.columns]
        if table.rules:
            lines += ["", *(f"- `{rule}`" for rule in table.rules)]
        if table.indexes:
            lines += ["", *(f"- `{_plain(index)}`" for index in table.indexes)]
    return "\n".join(lines) + "\n"


def _plain(index: str) -> str:
    return index.replace("{feed_key}", "seq")


def states() -> str:
    lines = [STATES]
    for table in find_declarations(StatefulTable).values():
        moves = table.transitions
        lines += ["", f"## {moves.kind}", "", "```mermaid", "stateDiagram-v2"]
        lines += [f"    [*] --> {state}: {verb}" for verb, state in moves.entries.items()]
        lines += [
            f"    {source} --> {move.to}: {verb}"
            for verb, move in moves.verbs.items()
            for source in move.sources
        ]
        lines += [f"    {state} --> [*]" for state in moves.terminal]
        lines += ["```", "", "| state | when |", "|---|---|"]
        lines += [f"| {state} | {meaning} |" for state, meaning in _meanings(moves.states)]
        if moves.import_states:
            lines += [
                "",
                f"From another tool's database it may come in as {_any(moves.import_states)}.",
            ]
        lines += ["", "| verb | from | to |", "|---|---|---|"]
        lines += [
            f"| {verb} | {', '.join(move.sources)} | {move.to} |"
            for verb, move in moves.verbs.items()
        ]
    return "\n".join(lines) + "\n"


def _any(states: Any) -> str:
    *others, last = states
    return f"{', '.join(others)} or {last}" if others else str(last)


def _meanings(states: Any) -> Iterator[tuple[str, str]]:
    source = inspect.getsource(states)
    for state in states:
        comment = re.search(rf'{state.name} = "{state.value}"  # (.*)', source)
        assert comment is not None, f"{states.__name__}.{state.name} needs a comment that says when"
        yield state.value, comment[1]


def library() -> str:
    lines = [LIBRARY]
    attribute = ""
    for row in list_operations():
        if row.attribute != attribute:
            attribute = row.attribute
            doc = " ".join((resource_classes()[attribute].__doc__ or "").split())
            lines += ["", f"## store.{attribute}", "", doc, "", "| | |", "|---|---|"]
        signature = re.sub(r"corral\.[\w.]+\.", "", str(row.signature)).replace("|", "\\|")
        signature = re.sub(r"(typing|pathlib|collections\\.abc)\\.", "", signature)
        lines.append(f"| `{row.verb}{signature}` | {row.help} |")
    return "\n".join(lines) + "\n"


def cli() -> str:
    lines = [CLI]
    with click.Context(root, info_name="corral") as context:
        for name in root.list_commands(context):
            command = root.get_command(context, name)
            assert command is not None
            lines += ["", f"## corral {name}", "", COMMANDS[name][1]]
            lines += _commands(command, context, f"corral {name}")
    return "\n".join(lines) + "\n"


def _commands(command: click.Command, parent: click.Context, path: str) -> list[str]:
    with click.Context(command, info_name=path.rpartition(" ")[2], parent=parent) as context:
        if isinstance(command, click.Group):
            lines: list[str] = []
            for name in command.commands:
                lines += _commands(command.commands[name], context, f"{path} {name}")
            return lines
        heading = ["", f"### {path}"] if path.count(" ") > 1 else []
        return [*heading, "", "```", command.get_help(context), "```"]


def imports() -> str:
    lines = [IMPORTS]
    for name in TOOL_NAMES:
        tool = find_tool(name)
        about = " ".join((inspect.getdoc(sys.modules[_module_of(name)]) or "").split())
        lines += ["", f"## {name}", "", about]
        for table in tool.tables:
            if table.alias:
                continue
            lines += ["", f"### {table.name}", "", "| column | here |", "|---|---|"]
            lines += [f"| {column} | {home} |" for column, home in table.columns.items()]
    return "\n".join(lines) + "\n"


def _module_of(tool: str) -> str:
    return f"corral.importers.mappings.{tool.replace('-', '_')}"


def manual() -> str:
    """The page that `man corral` shows."""
    lines = ['.\\" Written by `make docs` from the code. Do not edit.', MANUAL_HEAD]
    for name, (_, help) in COMMANDS.items():
        if name in SECTIONS:
            lines.append(f".SS {SECTIONS[name]}")
        if help:
            lines += [".TP", f".B {name}", help.replace("\\", "\\e")]
    lines.append(MANUAL_FOOT)
    return re.sub(r"(?<=[\w ])-(?=[\w-])", r"\\-", "\n".join(lines)) + "\n"


PAGES = {
    "reference/schema.md": schema,
    "reference/states.md": states,
    "reference/library.md": library,
    "reference/cli.md": cli,
    "reference/imports.md": imports,
    "corral.1": manual,
}


def main() -> int:
    stale = []
    for name, write in PAGES.items():
        notice = NOTICE if name.endswith(".md") else ""
        wanted, page = notice + write(), DOCS / name
        if not page.exists() or page.read_text(encoding="utf-8") != wanted:
            stale.append(name)
            if "--check" not in sys.argv:
                page.write_text(wanted, encoding="utf-8")
    if "--check" in sys.argv and stale:
        print(f"stale: {', '.join(stale)}; run `make docs`", file=sys.stderr)
        return 1
    print(f"docs: {len(PAGES)} pages; {'written: ' + ', '.join(stale) if stale else 'all current'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
