"""Generate the reference pages of docs/ from the code; with `--check`, only compare them."""

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
from corral.db.stateful_table import StatefulTable
from corral.importers.mappings.registry import TOOL_NAMES, find_tool
from corral.services.store.declarations import find_declarations

DOCS = Path(__file__).parent.parent / "docs"
NOTICE = "<!-- Written by `make docs` from the code. Do not edit. -->\n\n"

SCHEMA = """\
# Database schema

The tables are a public read interface: query them with `corral db sql` or any SQL client. Only
Corral may write. The schema is the same on both engines.

| type | meaning |
|---|---|
| `serial` | number that increases with each insert |
| `integer` | 64-bit integer. `…_at` columns are milliseconds since 1970 UTC, `…_ms` are durations |
| `key` | text that is compared byte by byte |
| `json` | JSON text |"""

STATES = """\
# States and transitions

A state changes only by a verb of its table. The tables are compiled into the WHERE clause of the
UPDATE that changes a state. An illegal transition raises `illegal_move`, with the current state and
the verbs that it allows."""

LIBRARY = """\
# Python library

`corral.open(url)` returns a store with one attribute per noun and one method per operation. Each
operation is one transaction. A store can be shared between threads. Records are frozen structs,
lists are pages (`.items`, `.next`), exceptions are in `corral.errors`. The command line has the
same nouns and verbs: [Command line](cli.md).

## Example: a worker

```python
import corral
from corral.errors import Held

with corral.open() as store:
    while True:
        # Wait up to a minute for a letter. If this process dies, the letter is claimed again.
        for letter in store.mail.claim("queue:builds", owner="worker-1", wait_ms=60_000):
            try:
                try:
                    work(letter.body)  # if it takes over 30 s, call store.mail.renew(letter)
                except Exception as error:
                    store.mail.fail(letter, str(error))  # retried with back-off, then dead
                else:
                    store.mail.ack(letter)
            except Held:
                pass  # the lease expired and another worker has claimed the letter
```

Delivery is at least once: a letter is processed again if a worker dies or loses its lease between
the work and `ack`. Before a side effect that must happen at most once, call
`store.mail.begin_delivery(letter)`: after a crash the letter is then `unconfirmed` instead of
retried, until `store.mail.resolve` says what happened. `ack_and_claim` acknowledges a letter and
claims the next ones in one transaction.

## Index"""

CLI = """\
# Command line

`corral [--store URL] [--json] COMMAND …`. `--store` and `--json` are accepted before and after the
command. With `--json` a command prints exactly one JSON value.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | the operation failed; `run` and `wait` exit with the code of the run |
| 2 | usage error or invalid input |
| 3 | not found |
| 4 | refused: conflict, illegal transition, held by another owner, ambiguous id |
| 5 | the store is unavailable |

## Index"""

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
agent tool. PATH is the file, or a folder that contains it at the tool's usual location. For
nanoclaw, the `v2-sessions` beside the database are imported too, or a single session folder.

- **The source is not changed.** Corral copies it first as one consistent snapshot, even while its
  tool writes to it.
- **One transaction.** The import is complete or has no effect. On SQLite, other writers wait
  meanwhile, so sources with more than 100,000 rows are refused while runs are active.
- **Idempotent.** A row is identified by tool, source, table and key. A second import adds only new
  rows. A row that changed in the source is recorded beside its record, which stays unchanged. A
  source is identified by its path; use `--name` if the same database may be at another path later.
- **Nothing is dropped silently.** Unknown tables and columns, values that do not fit and rows
  without a parent are stored in `import_origins.unmapped`. Problems are reported with a count and
  an example: invalid JSON, unknown states, invalid times, text that is not UTF-8 or has NUL bytes,
  values that are too long, duplicate keys. `corral import rows` shows the result of each row,
  `--kept` the rows that became no record.
- **Imported records are inactive.** Runs have ended, waiting items have ended or are paused,
  channels and wirings are removed, destinations are revoked, and no permissions are granted.
- **No secrets.** Text that looks like a secret is redacted, and credentials are not imported.
- **Times** in seconds, milliseconds or finer units, or as text, are recognised by their size. A
  time in the future becomes the time of the import.
- **nanoclaw conversations** become turns, merged from the two files of a session by time. Attached
  files are copied to `$CORRAL_HOME/imports` and deleted with their session. An empty or damaged
  session file is skipped and reported.
- **Code in a source does not run.** Constraints, generated columns, views, triggers and virtual
  tables are not evaluated; generated columns and views are reported as skipped. A value may have
  256 MB, and a statement may take 60 s between two rows.
- **Retention does not delete imported data.** The `retention_ms` settings apply only to data that
  Corral created, unless the setting `imports.apply_retention` is on. The report says how many
  imported rows retention would delete.
- **A second import restores** deleted records under the same id. Parts of a record (turns, log
  lines, members, tool grants) are restored only together with it.

The tables below list every column of each tool and where it is stored. `import_origins.row_id`
means that the value identifies the row."""


def render_schema() -> str:
    lines = [SCHEMA, "", "## Index", "", "| table | content |", "|---|---|"]
    lines += [f"| {_link(table.name)} | {_first_sentence(table.doc)} |" for table in tables()]
    for table in tables():
        lines += ["", f"## {table.name}", "", table.doc, ""]
        lines += ["| column | type | meaning |", "|---|---|---|"]
        lines += [f"| `{c.name}` | {c.type} | {c.doc} |" for c in table.columns]
        if table.rules:
            lines += ["", *(f"- `{rule}`" for rule in table.rules)]
        if table.indexes:
            lines += ["", *(f"- `{_render_index(index)}`" for index in table.indexes)]
    return "\n".join(lines) + "\n"


def _link(heading: str) -> str:
    """Link to a heading of the same page; GitHub and MkDocs derive the same anchor."""
    anchor = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
    return f"[{heading}](#{anchor})"


def _first_sentence(text: str) -> str:
    line = " ".join(text.split())
    return re.split(r"(?<=\w)[.;](?= |$)", line, maxsplit=1)[0].replace("|", "\\|")


def _render_index(index: str) -> str:
    return index.replace("{feed_key}", "seq")


def render_states() -> str:
    kinds = [table.transitions.kind for table in find_declarations(StatefulTable).values()]
    lines = [STATES, "", " · ".join(_link(kind) for kind in kinds)]
    for table in find_declarations(StatefulTable).values():
        transitions = table.transitions
        lines += ["", f"## {transitions.kind}", "", "```mermaid", "stateDiagram-v2"]
        lines += [
            f"    [*] --> {state}: {verb}" for verb, state in transitions.initial_states.items()
        ]
        lines += [
            f"    {source} --> {transition.to}: {verb}"
            for verb, transition in transitions.verbs.items()
            for source in transition.sources
        ]
        lines += [f"    {state} --> [*]" for state in transitions.terminal]
        lines += ["```", "", "| state | meaning |", "|---|---|"]
        lines += [
            f"| {state} | {meaning} |" for state, meaning in _read_meanings(transitions.states)
        ]
        if transitions.import_states:
            lines += [
                "",
                f"Imports may create it as {_join_with_or(transitions.import_states)}.",
            ]
        lines += ["", "| verb | from | to |", "|---|---|---|"]
        lines += [
            f"| {verb} | {', '.join(transition.sources)} | {transition.to} |"
            for verb, transition in transitions.verbs.items()
        ]
    return "\n".join(lines) + "\n"


def _join_with_or(states: Any) -> str:
    *first_states, last = states
    return f"{', '.join(first_states)} or {last}" if first_states else str(last)


def _read_meanings(states: Any) -> Iterator[tuple[str, str]]:
    source = inspect.getsource(states)
    for state in states:
        comment = re.search(rf'{state.name} = "{state.value}"  # (.*)', source)
        assert comment is not None, f"{states.__name__}.{state.name} needs a comment"
        yield state.value, comment[1]


def render_library() -> str:
    docs = {
        name: " ".join((resource.__doc__ or "").split())
        for name, resource in resource_classes().items()
    }
    lines = [LIBRARY, "", "| attribute | content |", "|---|---|"]
    lines += [
        f"| {_link(f'store.{name}')} | {_first_sentence(doc)} |" for name, doc in docs.items()
    ]
    attribute = ""
    for row in list_operations():
        if row.attribute != attribute:
            attribute = row.attribute
            lines += ["", f"## store.{attribute}", "", docs[attribute], ""]
            lines += ["| operation | description |", "|---|---|"]
        signature = re.sub(r"corral\.[\w.]+\.", "", str(row.signature)).replace("|", "\\|")
        signature = re.sub(r"(typing|pathlib|collections\.abc)\.", "", signature)
        lines.append(f"| `{row.verb}{signature}` | {row.help} |")
    return "\n".join(lines) + "\n"


def render_cli() -> str:
    lines = [CLI]
    for name, (_, help) in COMMANDS.items():
        if name in SECTIONS:
            lines += ["", f"**{SECTIONS[name]}**", "", "| command | description |", "|---|---|"]
        lines.append(f"| {_link(f'corral {name}')} | {help} |")
    with click.Context(root, info_name="corral") as context:
        for name in root.list_commands(context):
            command = root.get_command(context, name)
            assert command is not None
            lines += ["", f"## corral {name}", "", COMMANDS[name][1]]
            lines += _list_verbs(command, f"corral {name}")
            lines += _render_commands(command, context, f"corral {name}")
    return "\n".join(lines) + "\n"


def _list_verbs(command: click.Command, path: str) -> list[str]:
    """List the commands of a group, one line each."""
    if not isinstance(command, click.Group):
        return []
    verbs = [
        f"| {_link(f'{path} {name}')} | {verb.get_short_help_str(120)} |"
        for name, verb in command.commands.items()
    ]
    return ["", "| command | description |", "|---|---|", *verbs]


def _render_commands(command: click.Command, parent: click.Context, path: str) -> list[str]:
    with click.Context(command, info_name=path.rpartition(" ")[2], parent=parent) as context:
        if isinstance(command, click.Group):
            lines: list[str] = []
            for name in command.commands:
                lines += _render_commands(command.commands[name], context, f"{path} {name}")
            return lines
        heading = ["", f"### {path}"] if path.count(" ") > 1 else []
        return [*heading, "", "```", command.get_help(context), "```"]


def render_imports() -> str:
    lines = [IMPORTS]
    for name in TOOL_NAMES:
        tool = find_tool(name)
        about = " ".join((inspect.getdoc(sys.modules[_module_of(name)]) or "").split())
        lines += ["", f"## {name}", "", about]
        for table in tool.tables:
            if table.alias:
                continue
            lines += ["", f"### {table.name}", "", "| column | stored in |", "|---|---|"]
            lines += [f"| {column} | {home} |" for column, home in table.columns.items()]
    return "\n".join(lines) + "\n"


def _module_of(tool: str) -> str:
    return f"corral.importers.mappings.{tool.replace('-', '_')}"


def render_manual() -> str:
    """Render the page that `man corral` shows."""
    lines = ['.\\" Written by `make docs` from the code. Do not edit.', MANUAL_HEAD]
    for name, (_, help) in COMMANDS.items():
        if name in SECTIONS:
            lines.append(f".SS {SECTIONS[name]}")
        if help:
            lines += [".TP", f".B {name}", help.replace("\\", "\\e")]
    lines.append(MANUAL_FOOT)
    return re.sub(r"(?<=[\w ])-(?=[\w-])", r"\\-", "\n".join(lines)) + "\n"


PAGES = {
    "reference/schema.md": render_schema,
    "reference/states.md": render_states,
    "reference/library.md": render_library,
    "reference/cli.md": render_cli,
    "reference/imports.md": render_imports,
    "corral.1": render_manual,
}


def main() -> int:
    stale = []
    for name, render in PAGES.items():
        notice = NOTICE if name.endswith(".md") else ""
        content, page = notice + render(), DOCS / name
        if not page.exists() or page.read_text(encoding="utf-8") != content:
            stale.append(name)
            if "--check" not in sys.argv:
                page.write_text(content, encoding="utf-8")
    if "--check" in sys.argv and stale:
        print(f"stale: {', '.join(stale)}; run `make docs`", file=sys.stderr)
        return 1
    print(f"docs: {len(PAGES)} pages; {'written: ' + ', '.join(stale) if stale else 'all current'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
