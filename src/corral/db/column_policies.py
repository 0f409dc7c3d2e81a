"""The redaction policy of every text column, declared once for each table.

A text column is redacted (a secret in the text is replaced), rejected (a value that contains a
secret raises `Invalid`), or exempt with the reason. Columns of numbers and bytes have no entry.
Names of parameters have no influence: a statement derives the column of each parameter, see
`db/parameter_columns.py`. `tests/contract/test_redaction_policies.py` compares this list with the
migrated schema of both engines.

Reject where a replaced part would change the meaning: two names that differ only in their secrets
would become one, and a set-up with [redacted] in it does not work. Exempt what Corral must find
or execute exactly as given.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

from corral.db.parameter_columns import find_parameter_columns
from corral.kernel.redaction_policy import Policy, StoredParameter

# Reasons for an exemption.
_ID = "an identifier that Corral generated"
_FOREIGN = "an identifier of another program; a lookup needs the exact value"
_FIXED = "one of a fixed set of values"
_EXECUTED = "executed as given; with a part replaced it would be another command or pattern"
_LOCATION = "a path, branch or address; with a part replaced it would be another one"
_DIRECTORY = "by default the name of a directory, which its path shows as well"
_HASH = "a hash or a git object id"
_SYSTEM = "read from the operating system, or a name that it knows"
_REFERENCE = "a reference to a secret, never its value"
_ACTOR = "the name of the actor; compared exactly"
_HOLDER = "the process that holds the lease; every renewal compares it exactly"
_VERSION = "a version that a program reports"
_OWN_FILE = "the name of a file of Corral itself"
_COPY = "copied inside the database from a column that has its own policy"


class TablePolicy(NamedTuple):
    """The text columns of one table by policy, as names separated by spaces."""

    redacted: str = ""
    rejected: str = ""
    exempt: Mapping[str, str] = {}
    """By the reason."""

    def declared(self) -> list[tuple[str, Policy]]:
        """Return every declaration in order, a column that is declared twice included."""
        return [
            *((name, Policy.REDACTED) for name in self.redacted.split()),
            *((name, Policy.REJECTED) for name in self.rejected.split()),
            *((name, Policy.EXEMPT) for names in self.exempt.values() for name in names.split()),
        ]


TABLES: Mapping[str, TablePolicy] = {
    "migrations": TablePolicy(
        exempt={
            _HASH: "checksum",
            _OWN_FILE: "name",
        },
    ),
    "store_options": TablePolicy(
        redacted="durability",
    ),
    "events": TablePolicy(
        redacted="data",
        exempt={
            _ID: "subject project_id run_id",
            _FIXED: "kind verb",
            _ACTOR: "actor",
        },
    ),
    "settings": TablePolicy(
        redacted="value",
        rejected="scope name",
        exempt={
            _ACTOR: "updated_by",
        },
    ),
    "secrets": TablePolicy(
        rejected="name",
        exempt={
            _REFERENCE: "reference",
            _ACTOR: "updated_by",
        },
    ),
    "projects": TablePolicy(
        redacted="prompt",
        exempt={
            _ID: "id",
            _FIXED: "state",
            _EXECUTED: "command",
            _LOCATION: "dir",
            _DIRECTORY: "name",
        },
    ),
    "nodes": TablePolicy(
        redacted="labels",
        rejected="name owner",
        exempt={
            _ID: "id",
            _FIXED: "state",
            _SYSTEM: "boot_id",
        },
    ),
    "leaders": TablePolicy(
        rejected="name owner",
    ),
    "letters": TablePolicy(
        redacted="body last_error",
        rejected="mailbox sender key",
        exempt={
            _ID: "project_id",
            _FIXED: "state",
            _HOLDER: "owner",
        },
    ),
    "schedules": TablePolicy(
        redacted="body rule misfire overlap last_error",
        rejected="name mailbox sender",
        exempt={
            _ID: "id project_id correlation_id",
            _FIXED: "kind state",
            _EXECUTED: "script",
            _SYSTEM: "time_zone",
        },
    ),
    "occurrences": TablePolicy(
        redacted="output reason",
        exempt={
            _ID: "id schedule_id project_id run_id",
            _FIXED: "state",
        },
    ),
    "runs": TablePolicy(
        redacted="title provider model stop_kind stop_reason reason attention dialog denials",
        rejected="name",
        exempt={
            _ID: "id project_id session_id agent_id parent_id node_id",
            _FIXED: "state mode",
            _EXECUTED: "command args",
            _LOCATION: "cwd",
            _SYSTEM: "host boot_id start_token supervisor_token",
            _HOLDER: "owner",
            _VERSION: "provider_version",
        },
    ),
    "launches": TablePolicy(
        redacted="labels prompt approvals",
        rejected="env",
        exempt={
            _ID: "run_id",
            _FOREIGN: "resume_session",
            _FIXED: "sandbox",
            _SYSTEM: "host environment",
            _REFERENCE: "secrets",
        },
    ),
    "resource_samples": TablePolicy(
        exempt={
            _ID: "run_id",
        },
    ),
    "agents": TablePolicy(
        rejected="name",
        exempt={
            _ID: "id",
            _FIXED: "state",
        },
    ),
    "agent_versions": TablePolicy(
        redacted="provider model instructions limits",
        rejected="role",
        exempt={
            _ID: "agent_id",
            _EXECUTED: "command",
            _LOCATION: "workspace",
            _HASH: "hash",
            _ACTOR: "created_by",
        },
    ),
    "tool_grants": TablePolicy(
        redacted="tool",
        exempt={
            _ID: "agent_id",
            _ACTOR: "updated_by",
        },
    ),
    "sessions": TablePolicy(
        redacted="title provider replaced_by",
        rejected="reply_to",
        exempt={
            _ID: "id project_id agent_id parent_id",
            _FOREIGN: "provider_session",
            _FIXED: "state",
        },
    ),
    "turns": TablePolicy(
        redacted="content tool_name arguments result meta",
        rejected="role key",
        exempt={
            _ID: "session_id agent_id run_id",
            _FOREIGN: "tool_call_id",
        },
    ),
    "session_state": TablePolicy(
        redacted="value",
        rejected="name",
        exempt={
            _ID: "session_id",
        },
    ),
    "handoffs": TablePolicy(
        redacted="policy note summary",
        exempt={
            _ID: "session_id from_agent_id to_agent_id run_id",
        },
    ),
    "retros": TablePolicy(
        redacted="body",
        exempt={
            _ID: "session_id",
        },
    ),
    "passages": TablePolicy(
        redacted="text folded",
        exempt={
            _ID: "subject project_id",
            _FIXED: "kind",
        },
    ),
    "search_cursors": TablePolicy(
        redacted="source",
    ),
    "charges": TablePolicy(
        redacted="provider model source",
        rejected="key",
        exempt={
            _ID: "run_id session_id project_id agent_id",
            _VERSION: "prices_version",
        },
    ),
    "usage_totals": TablePolicy(
        redacted="day",
        rejected="scope",
    ),
    "usage_counters": TablePolicy(
        rejected="name",
    ),
    "budgets": TablePolicy(
        redacted="period",
        rejected="scope",
        exempt={
            _ACTOR: "updated_by",
        },
    ),
    "budget_reservations": TablePolicy(
        redacted="period day",
        rejected="scope",
        exempt={
            _ID: "run_id",
        },
    ),
    "alerts": TablePolicy(
        redacted="kinds target_kind secret created_by",
        rejected="target",
        exempt={
            _ID: "id project_id agent_id",
            _FIXED: "state",
        },
    ),
    "outputs": TablePolicy(
        redacted="sha256 head tail reason",
        exempt={
            _ID: "run_id",
            _FIXED: "state mode",
            _LOCATION: "folder",
            _SYSTEM: "host",
        },
    ),
    "output_chunks": TablePolicy(
        exempt={
            _ID: "run_id",
            _FIXED: "stream",
        },
    ),
    "log_lines": TablePolicy(
        redacted="level message metadata source",
        exempt={
            _ID: "run_id",
        },
    ),
    "imports": TablePolicy(
        redacted="source",
        exempt={
            _ID: "session_id",
            _LOCATION: "path",
        },
    ),
    "import_origins": TablePolicy(
        redacted="tool source source_table record_table unmapped problems",
        exempt={
            _ID: "id",
            _FOREIGN: "row_id",
            _HASH: "digest",
        },
    ),
    "tokens": TablePolicy(
        redacted="created_by",
        rejected="name scope",
        exempt={
            _ID: "id project_id",
            _FIXED: "state",
            _HASH: "hash",
        },
    ),
    "idempotency_keys": TablePolicy(
        redacted="response",
        rejected="key",
        exempt={
            _ID: "id token_id",
            _HASH: "fingerprint",
        },
    ),
    "tasks": TablePolicy(
        redacted="title description lead conflicts_with_id evidence reason created_by",
        rejected="key role",
        exempt={
            _ID: "id project_id assignee_id agent_id run_id blocked_by_id",
            _FIXED: "state",
            _EXECUTED: "check_command",
            _LOCATION: "files dir",
        },
    ),
    "task_dependencies": TablePolicy(
        exempt={
            _ID: "task_id depends_on_id",
        },
    ),
    "delegations": TablePolicy(
        redacted="text context result reason",
        rejected="from_mailbox to_mailbox",
        exempt={
            _ID: "id project_id to_agent_id parent_id task_id letter_id correlation_id",
            _FIXED: "state",
        },
    ),
    "plans": TablePolicy(
        redacted="entries",
        exempt={
            _ID: "subject run_id project_id",
        },
    ),
    "progress": TablePolicy(
        redacted="summary",
        exempt={
            _ID: "id agent_id task_id run_id project_id",
        },
    ),
    "locks": TablePolicy(
        redacted="path_prefix reason ended_by",
        rejected="owner",
        exempt={
            _ID: "project_id run_id",
            _FIXED: "state mode",
            _LOCATION: "path",
        },
    ),
    "file_touches": TablePolicy(
        rejected="owner",
        exempt={
            _ID: "project_id",
            _LOCATION: "path",
        },
    ),
    "questions": TablePolicy(
        redacted="asker text options answerers fallback effect votes answer answered_by",
        rejected="key",
        exempt={
            _ID: "id project_id run_id correlation_id",
            _FIXED: "state",
        },
    ),
    "groups": TablePolicy(
        redacted="roles created_by",
        rejected="name",
        exempt={
            _ID: "id project_id",
            _FIXED: "kind state",
        },
    ),
    "group_roles": TablePolicy(
        rejected="role",
        exempt={
            _ID: "group_id",
        },
    ),
    "group_members": TablePolicy(
        rejected="name role",
        exempt={
            _ID: "group_id",
        },
    ),
    "posts": TablePolicy(
        redacted="author text",
        rejected="key",
        exempt={
            _ID: "id group_id",
        },
    ),
    "reactions": TablePolicy(
        redacted="emoji",
        rejected="member",
        exempt={
            _ID: "post_id",
        },
    ),
    "decisions": TablePolicy(
        redacted=(
            "author category title rationale alternatives answerers deadline_outcome decided_by"
            " reason"
        ),
        rejected="key",
        exempt={
            _ID: "id project_id run_id",
            _FIXED: "state",
        },
    ),
    "notes": TablePolicy(
        redacted="category text source supersedes",
        rejected="scope key",
        exempt={
            _ID: "id project_id",
            _FIXED: "state",
        },
    ),
    "races": TablePolicy(
        redacted="prompt subdirectory plan reason created_by",
        rejected="name",
        exempt={
            _ID: "id project_id",
            _FIXED: "state",
            _LOCATION: "repository branch",
            _HASH: "base_commit merged_commit",
            _SYSTEM: "host",
        },
    ),
    "rounds": TablePolicy(
        redacted="prompt reason decided_by",
        exempt={
            _ID: "id race_id project_id parent_id base_attempt_id winner_id",
            _FIXED: "state",
            _HASH: "base_commit winner_commit",
            _SYSTEM: "host",
            _HOLDER: "owner",
        },
    ),
    "attempts": TablePolicy(
        redacted="agent provider model variation prompt checks reason",
        exempt={
            _ID: "id race_id round_id project_id run_id session_id",
            _FIXED: "state sandbox",
            _LOCATION: "branch worktree",
            _HASH: "commit_id checked_tree",
        },
    ),
    "verdicts": TablePolicy(
        redacted="judge model labels ranking reason",
        exempt={
            _ID: "id race_id round_id project_id run_id",
            _FIXED: "state",
            _HASH: "prompt_hash",
        },
    ),
    "selections": TablePolicy(
        redacted="reason",
        exempt={
            _ID: "round_id attempt_id ranked_first_id",
            _FIXED: "verb",
            _HASH: "commit_id",
            _ACTOR: "selected_by",
        },
    ),
    "grafts": TablePolicy(
        redacted="checks reason",
        exempt={
            _ID: "id round_id attempt_id",
            _LOCATION: "files",
            _HASH: "commit_id",
            _ACTOR: "created_by",
        },
    ),
    "channels": TablePolicy(
        redacted="policy on_unconfirmed last_error created_by",
        rejected="name config",
        exempt={
            _ID: "id",
            _FOREIGN: "cursor",
            _FIXED: "kind state",
            _REFERENCE: "secrets",
        },
    ),
    "places": TablePolicy(
        redacted="policy",
        rejected="name",
        exempt={
            _ID: "id channel_id",
            _FOREIGN: "platform_id",
            _FIXED: "state",
        },
    ),
    "people": TablePolicy(
        rejected="name role",
    ),
    "senders": TablePolicy(
        redacted="person",
        rejected="name",
        exempt={
            _ID: "id channel_id",
            _FOREIGN: "platform_id",
            _FIXED: "state",
        },
    ),
    "wirings": TablePolicy(
        redacted="trigger unmatched created_by",
        rejected="scope",
        exempt={
            _ID: "id channel_id place_id agent_id project_id",
            _FIXED: "mode state",
            _EXECUTED: "pattern",
        },
    ),
    "destinations": TablePolicy(
        redacted="created_by",
        rejected="name",
        exempt={
            _ID: "id agent_id place_id",
            _FIXED: "state",
        },
    ),
    "messages": TablePolicy(
        redacted="direction text data reason routes",
        rejected="reply_to",
        exempt={
            _ID: "channel_id place_id sender_id agent_id run_id",
            _FOREIGN: "thread event_id platform_ids",
            _FIXED: "kind state",
        },
    ),
    "conversations": TablePolicy(
        redacted="claimed_letters",
        exempt={
            _ID: "session_id agent_id place_id run_id",
            _FOREIGN: "thread",
        },
    ),
    "sandbox_outcomes": TablePolicy(
        redacted="reason",
        exempt={
            _ID: "id session_id question_id",
            _FOREIGN: "out_id",
        },
    ),
    "question_cards": TablePolicy(
        exempt={
            _ID: "question_id place_id session_id",
        },
    ),
    "host_requests": TablePolicy(
        redacted="action arguments effect decided_by result reason",
        rejected="key",
        exempt={
            _ID: "id agent_id run_id session_id question_id",
            _FIXED: "state",
        },
    ),
    "letter_chains": TablePolicy(
        redacted="in_reply_to",
        rejected="reply_to",
        exempt={
            _ID: "letter_id correlation_id agent_id read_by",
        },
    ),
    "checkpoints": TablePolicy(
        redacted="ns parent format metadata",
        rejected="caller",
        exempt={
            _FOREIGN: "thread id",
        },
    ),
    "checkpoint_writes": TablePolicy(
        redacted="ns checkpoint task channel format",
        exempt={
            _FOREIGN: "thread",
            _LOCATION: "path",
        },
    ),
    "store_moves": TablePolicy(
        redacted="phase move_id copied_rows",
        exempt={
            _LOCATION: "url",
        },
    ),
    # Tables that only SQLite has: deferred indexes, see `db/sqlite_deferred_indexes.py`.
    "deferred_indexes": TablePolicy(exempt={_FIXED: "name"}),
    "events_by_subject": TablePolicy(exempt={_COPY: "subject"}),
    "letters_by_mailbox": TablePolicy(exempt={_COPY: "mailbox"}),
    "passages_words": TablePolicy(exempt={_COPY: "text"}),
}


@cache
def get_column_policies(table: str) -> Mapping[str, Policy]:
    """Return the policy of each text column of a table; raises LookupError for an unknown table."""
    policy = TABLES.get(table)
    if policy is None:
        raise LookupError(f"The table {table} has no redaction policy; declare it in {__name__}.")
    return dict(policy.declared())


def find_redactable_params(
    text: str, table: str, declared: Mapping[str, Policy]
) -> dict[str, StoredParameter]:
    """Return the parameters of a statement that are redacted or rejected.

    `declared` has the policies that the statement itself declares; they take precedence over those
    of the columns. Raises LookupError if a stored parameter has no policy, or several.
    """
    parameters = find_parameter_columns(text)
    undeclared = parameters.unknown - declared.keys()
    if undeclared:
        raise LookupError(
            f"No redaction policy for {', '.join(sorted(undeclared))}: the text does not show which"
            f" column stores it. Declare a policy with `policies=`. In: {text}"
        )
    redactable = {name: StoredParameter(policy, table, name) for name, policy in declared.items()}
    for name, columns in parameters.columns.items():
        if name not in declared and (stored := _describe_stored(name, columns, text)):
            redactable[name] = stored
    rows = {
        key: stored
        for key, columns in parameters.row_columns.items()
        if (stored := _describe_stored(key, columns, text))
    }
    if rows and "rows" not in declared:
        redactable["rows"] = StoredParameter(Policy.REDACTED, table, "rows", rows)
    return {
        name: parameter
        for name, parameter in redactable.items()
        if parameter.policy is not Policy.EXEMPT
    }


def _describe_stored(name: str | int, columns: Iterable[str], text: str) -> StoredParameter | None:
    """Return what happens to a value; None if it is exempt or not stored in a text column."""
    stored = set()
    for column in columns:
        table, _, column_name = column.partition(".")
        policy = get_column_policies(table).get(column_name)
        if policy is not None:
            stored.add(StoredParameter(policy, table, column_name))
    if len({parameter.policy for parameter in stored}) > 1:
        raise LookupError(
            f"Several redaction policies for {name}, which is stored in "
            f"{', '.join(sorted(columns))}. Declare one with `policies=`. In: {text}"
        )
    first = min(stored, default=None)
    return None if first is None or first.policy is Policy.EXEMPT else first
