"""The query plan of every hot statement, on both engines, in a store with a long history.

Each line of the table runs an operation of the library and names the indexes that its statements
may and must use. No statement may scan a whole table or sort a backlog.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import apsw
import msgspec
import psycopg
import pytest

import corral
from corral.adapters.channels.contract import IncomingEvent
from corral.adapters.providers.facts import UsageFact
from corral.api import Corral
from corral.api.idempotency import IdempotencyKey, call_with_key
from corral.db import sqlite_deferred_indexes
from corral.domain.charges.model import ChargePrice
from corral.domain.chat.conversations import chat_turns, long_running
from corral.domain.chat.conversations import ops as conversations
from corral.domain.chat.outbound import reconciliation
from corral.domain.checkpoints.model import NewCheckpointWrite
from corral.domain.decisions import ops as decisions
from corral.domain.host_requests import ops as requests
from corral.domain.locks import heartbeat as lock_heartbeat
from corral.domain.locks import ops as locks
from corral.domain.locks import queries as lock_queries
from corral.domain.mail import ops as mail
from corral.domain.mail import queries as letters
from corral.domain.mail import sql as mail_sql
from corral.domain.outputs import ops as outputs
from corral.domain.projects import ops as projects
from corral.domain.questions import ops as questions
from corral.domain.races import queries, round_steps, run_lookup
from corral.domain.runs import dispatch
from corral.domain.runs import ops as runs
from corral.domain.runs.model import Attention, ResourceSample
from corral.domain.sandbox_bridge import ops as sandbox_bridge
from corral.domain.search import ops as search
from corral.domain.tasks import review
from corral.kernel.clock import ManualClock
from corral.kernel.exit_status import ExitStatus
from corral.kernel.pagination import encode_cursor
from corral.services.store import deletion
from tests.support.grouped_cases import Cases
from tests.support.large_store import fill
from tests.support.query_plans import Plan, postgres_plan, sqlite_plan
from tests.support.run_factories import held, next_queued, queued, run_spec, running
from tests.support.statement_trace import Call, trace_statements
from tests.support.store import read, write

Operation = Callable[[Corral], object]

# Indexes of statements for which the engines use different ones, both correctly.
BY_ENGINE = {
    # The feed follows commits: SQLite's sequence numbers, PostgreSQL's transactions.
    "the feed": {"sqlite": "events_pkey", "postgres": "events_feed"},
    # Searched among the newest: FTS5 supports a range of numbers, GIN does not.
    "a common word": {"sqlite": "passages_words", "postgres": "passages_pkey"},
    # Both find an id; PostgreSQL uses the smaller index.
    "an open session": {"sqlite": "sessions_pkey", "postgres": "sessions_open"},
    "live runs of a project": {"sqlite": "runs_live_of_project", "postgres": "runs_live"},
    "one member": {"sqlite": "group_members_pkey", "postgres": "group_members_by_name"},
    "an open group": {"sqlite": "groups_pkey", "postgres": "groups_open"},
    "an open question": {"sqlite": "questions_pkey", "postgres": "questions_open"},
    "attempts with worktrees": {"sqlite": "attempts_by_race", "postgres": "attempts_with_worktree"},
    "an open schedule": {"sqlite": "schedules_pkey", "postgres": "schedules_open"},
    # With several clocks in use, a letter is queued behind letters of faster clocks.
    "its queue position": {"sqlite": None, "postgres": "letters_queue"},
}

# SQLite fills these indexes after the write; newer rows are read by their number.
DEFERRED = {
    f"{table}_by_{column}": {f"{table}_by_{column}", f"{table}_pkey", "deferred_indexes"}
    for table, column in sqlite_deferred_indexes.DEFERRED_INDEXES.items()
}

# A live run is found by its id in any of these, and so are runs in rare states.
EQUIVALENT = {
    "runs_live": "runs_pkey",
    "runs_by_state": "runs_pkey",
}
ONE_RUN = (
    "runs.acquire",
    "runs.restart",
    "runs.heartbeat",
    "runs.set_attention",
    "runs.park",
    "runs.record_end",
    "runs.stop",
    "runs, room for more",
    "runs, next queued",
    "runs.next_due",
)

# SQLite reports SCAN for a backward walk along the primary key that stops at the limit.
ALLOWED_SCANS = {"events.newest": "SCAN events"}

# GIN is unordered, so PostgreSQL sorts the row numbers that it finds.
ALLOWED_SORT = "Sort "

# Allowed where the next queued run is selected among the waiting ones, without reading history, and
# where the charges of one task are summed.
ALLOWED_FOR_QUEUE = {
    "Sort ",
    "USE TEMP B-TREE FOR GROUP BY",
    "USE TEMP B-TREE FOR ORDER BY",
    "SEARCH busy USING AUTOMATIC COVERING INDEX (project=?) LEFT-JOIN",
}

# The expired leases of one mailbox are sorted by number where they share an end. All of them are
# locked, so the sort reads no further row.
ALLOWED_FOR_LOCKS = {"Incremental Sort "}

# Ids of the history start with a number and an x, so this prefix is enough.
PROJECT = "prj_7x"
QUESTION = "qst_40x"
DECISION = "dec_40x"
GROUP = "grp_20x"
CHANNEL = "chn_20x"
ARRIVAL = {
    "question_cards_open",
    "channels_pkey",
    "messages_by_event",
    "places_channel_id_platform_id_key",
    "senders_channel_id_platform_id_key",
}
LISTENING = {
    "agents_pkey",
    "destinations_agent_id_place_id_key",
    "sessions_pkey",
    "conversations_agent_id_place_id_thread_key",
    "wirings_once",
}
PLACE = f"plc_7x{'0' * 24}"
LETTER = {"mailbox": "queue:other", "body": 1}
SCHEDULE = "sch_4x"
SCRIPTED = "sch_8x"
RUN = "run_7x" + "0" * 24
AGENT = "agt_7x"
SESSION = f"ses_20x{'0' * 23}"
FORK = f"ses_50x{'0' * 23}"
TURNS = {"sessions_pkey", "turns_by_number"}
CHECKPOINTS = {"checkpoints_by_id", "checkpoint_writes_by_position"}
RUNS_PROJECT = f"prj_7x{'0' * 24}"
RUNS_AGENT = f"agt_3x{'0' * 24}"
ONE_TASK = f"tsk_7x{'0' * 24}"
QUIET_PROJECT = f"prj_60x{'0' * 23}"
GRAPH = RUNS_PROJECT
TASK = {"tasks_pkey", "task_dependencies_pkey"}
RACE = "rac_40x"
ROUND = "rnd_" + "40x" + "0" * 23
RACES = {
    "attempts_by_race",
    "selections_pkey",
    "grafts_by_round",
    "races_pkey",
    "rounds_by_race",
    "verdicts_by_race",
}
AGENT_BY_NAME = {"agents_name_key", "agent_versions_pkey"}


def after_claim(box: str, verb: str, *arguments: Any) -> Operation:
    """Prepare a claim outside the measured call, then call a verb on the claimed letter."""

    def prepare(store: Corral) -> Operation:
        (letter,) = store.mail.claim(box, owner="o")
        return lambda store: getattr(store.mail, verb)(letter, *arguments)

    return prepare


def next_page(attribute: str, verb: str, **arguments: Any) -> Operation:
    """Request the second page of a list, by the cursor of the first."""

    def prepare(store: Corral) -> Operation:
        list_ = getattr(getattr(store, attribute), verb)
        value = "cursor" if attribute == "events" else "after"
        cursor = {value: list_(limit=5, **arguments).next}
        return lambda store: list_(limit=5, **cursor, **arguments)

    return prepare


def after_run(verb: str, *arguments: Any, **named: Any) -> Operation:
    """Prepare a running run outside the measured call, then call a verb on it."""

    def prepare(store: Corral) -> Operation:
        run = running(store, budget_micros=1)
        return lambda store: getattr(store.internal.runs, verb)(run, *arguments, **named)

    return prepare


def after_run_id(call: Callable[[Corral, str], object]) -> Operation:
    def prepare(store: Corral) -> Operation:
        id = running(store).id
        return lambda store: call(store, id)

    return prepare


def call_once(key: str) -> Operation:
    """Call through the API with an idempotency key."""

    def call(store: Corral) -> object:
        idempotency_key = IdempotencyKey("tok_1", key, "f")
        return call_with_key(
            store.mail, "put", LETTER, key=idempotency_key, encode=msgspec.json.encode
        )

    return call


def after_lock(verb: str) -> Operation:
    """Prepare a lock outside the measured call, then call a verb on it."""

    def prepare(store: Corral) -> Operation:
        lock = store.locks.acquire(QUIET_PROJECT, f"src/{verb}", "ada")
        return lambda store: getattr(store.locks, verb)(lock)

    return prepare


def acquire_queued_run(store: Corral) -> Operation:
    id = queued(store, budget_micros=1).id
    return lambda store: store.internal.runs.acquire(id, held())


def delete_ended_run(store: Corral) -> Operation:
    id = store.internal.runs.record_end(running(store), ExitStatus(exit_code=0)).id
    return lambda store: write(store, lambda tx: deletion.delete_run(tx, id))


def after_task(verb: str, *arguments: Any) -> Operation:
    """Prepare a claimed task outside the measured call, then call a verb on it."""

    def prepare(store: Corral) -> Operation:
        task = store.tasks.claim(GRAPH, "a7")
        assert task is not None
        return lambda store: getattr(store.tasks, verb)(task, *arguments)

    return prepare


PREPARED_CALLS: dict[str, tuple[Operation, set[str]]] = {
    "tasks.renew": (after_task("renew"), TASK | {"settings_pkey"}),
    "tasks.submit": (after_task("submit", "done"), TASK | {"tasks_by_conflict"}),
    "tasks.fail": (
        after_task("fail", "no"),
        TASK | {"delegations_of_task", "task_dependencies_by_dependency", "tasks_by_conflict"},
    ),
    "tasks.list of a project, next page": (
        next_page("tasks", "list", project=GRAPH),
        {"task_dependencies_pkey", "projects_pkey", "tasks_by_project", "tasks_pkey"},
    ),
    "delegations.list all, next page": (
        next_page("delegations", "list", all=True),
        {"delegations_pkey"},
    ),
    "runs.acquire": (
        acquire_queued_run,
        {
            "budgets_pkey",
            "launches_pkey",
            "nodes_name_boot_id_key",
            "budget_reservations_by_scope",
            "runs_pkey",
            "settings_pkey",
            "usage_totals_pkey",
        },
    ),
    "runs.restart": (after_run("restart", held(), ExitStatus(), quick_failures=0), {"runs_pkey"}),
    "runs.heartbeat": (
        after_run("heartbeat", output_bytes=1),
        {"runs_pkey", "locks_of_run", "tasks_running_by_run"},
    ),
    "runs.update_details": (after_run("update_details", tokens=1), {"runs_pkey"}),
    "runs.set_attention": (
        after_run("set_attention", Attention.STUCK),
        {"runs_pkey", "alerts_active"},
    ),
    "runs.record_environment": (
        after_run("record_environment", {}),
        {"launches_pkey", "runs_pkey"},
    ),
    "runs.add_sample": (after_run("add_sample", ResourceSample(1, 1, 1, 1)), {"runs_pkey"}),
    "runs.samples": (
        after_run_id(lambda c, id: c.runs.samples(id)),
        {"runs_pkey", "resource_samples_pkey"},
    ),
    "runs.park": (after_run("park", until=1, reason="x"), {"runs_pkey"}),
    "runs.record_end": (
        after_run("record_end", ExitStatus(exit_code=0)),
        {"runs_pkey", "alerts_active", "budgets_pkey", "budget_reservations_pkey"},
    ),
    "runs.stop": (after_run_id(lambda c, id: c.internal.runs.request_stop(id)), {"runs_pkey"}),
    "runs.get by its id": (after_run_id(lambda c, id: c.runs.get(id)), {"runs_pkey"}),
    "runs.get_launch": (
        after_run_id(lambda c, id: c.runs.get_launch(id)),
        {"launches_pkey", "runs_pkey"},
    ),
    "runs.delete": (
        delete_ended_run,
        {
            "launches_pkey",
            "log_lines_by_run",
            "log_lines_pkey",
            "output_chunks_pkey",
            "outputs_pkey",
            "runs_pkey",
            "passages_by_subject",
            "passages_pkey",
            "resource_samples_pkey",
        },
    ),
    "runs.list, next page": (next_page("runs", "list"), {"runs_pkey"}),
    "runs.list live, next page": (next_page("runs", "list", live=True), {"runs_live"}),
    "runs.list of a project, next page": (
        next_page("runs", "list", project=RUNS_PROJECT),
        {"runs_by_project"},
    ),
    "locks.release": (after_lock("release"), {"locks_pkey", "locks_waiting"}),
    "locks.renew": (after_lock("renew"), {"locks_pkey"}),
    "mail.ack": (after_claim("queue:busy", "ack"), {"letters_pkey"}),
    "mail.renew": (after_claim("queue:busy", "renew"), {"letters_pkey"}),
    "mail.begin_delivery": (after_claim("queue:busy", "begin_delivery"), {"letters_pkey"}),
    "mail.refuse": (after_claim("queue:busy", "refuse", "no"), {"letters_pkey"}),
    "mail.fail": (after_claim("queue:busy", "fail", "no"), {"letters_pkey", "settings_pkey"}),
    "mail.list, next page": (next_page("mail", "list"), {"letters_queue"}),
    "mail.list of a mailbox, next page": (
        next_page("mail", "list", mailbox="agent:busy"),
        {"letters_queue"},
    ),
    "mail.list all, next page": (next_page("mail", "list", all=True), {"letters_pkey"}),
    "mail.list all of a mailbox, next page": (
        next_page("mail", "list", all=True, mailbox="agent:a5"),
        {"letters_by_mailbox"},
    ),
    "mail.dead, next page": (next_page("mail", "dead"), {"letters_by_state"}),
    "projects.list, next page": (next_page("projects", "list"), {"projects_recent"}),
    "projects.list archived too, next page": (
        next_page("projects", "list", archived=True),
        {"projects_recent"},
    ),
    "schedules.list, next page": (next_page("schedules", "list"), {"schedules_open"}),
    "schedules.list all, next page": (
        next_page("schedules", "list", all=True),
        {"schedules_pkey"},
    ),
    "timers.list, next page": (next_page("timers", "list"), {"schedules_open"}),
    "nodes.list, next page": (next_page("nodes", "list"), {"nodes_pkey"}),
    "agents.list, next page": (
        next_page("agents", "list"),
        {"agents_active", "agent_versions_pkey"},
    ),
    "agents.list retired too, next page": (
        next_page("agents", "list", retired=True),
        {"agents_name_key", "agent_versions_pkey"},
    ),
    "sessions.list, next page": (next_page("sessions", "list"), {"sessions_open"}),
    "sessions.list all, next page": (next_page("sessions", "list", all=True), {"sessions_pkey"}),
    "sessions.list of a project, next page": (
        next_page("sessions", "list", project=QUIET_PROJECT),
        {"sessions_open_by_project"},
    ),
    "sessions.list all of a project, next page": (
        next_page("sessions", "list", project=QUIET_PROJECT, all=True),
        {"sessions_by_project"},
    ),
    "search.find, next page": (
        next_page("search", "find", text="text"),
        {"passages_pkey", "a common word"},
    ),
    "secrets.list, next page": (next_page("secrets", "list"), {"secrets_pkey"}),
    "tokens.list, next page": (next_page("tokens", "list"), {"tokens_by_name"}),
    "tokens.list all, next page": (next_page("tokens", "list", all=True), {"tokens_pkey"}),
    "events.after, next page": (next_page("events", "after"), {"the feed"}),
    "events.after of a subject, next page": (
        next_page("events", "after", subject="let_7"),
        {"events_by_subject"},
    ),
    "events.after of a project, next page": (
        next_page("events", "after", project="prj_4"),
        {"events_by_project"},
    ),
}

CALLS: dict[str, tuple[Operation, set[str]]] = {
    "tasks.claim": (
        lambda c: c.tasks.claim(GRAPH, "a7"),
        {
            *AGENT_BY_NAME,
            *TASK,
            "projects_pkey",
            "settings_pkey",
            "tasks_claimable_assigned",
            "tasks_running",
            "tasks_claimable",
        },
    ),
    "tasks.claim of a role": (
        lambda c: c.tasks.claim(GRAPH, "a7", role="builder"),
        {
            *AGENT_BY_NAME,
            *TASK,
            "projects_pkey",
            "settings_pkey",
            "tasks_claimable_assigned",
            "tasks_running",
            "tasks_claimable_by_role",
        },
    ),
    "races.get": (lambda c: c.races.get(RACE), RACES),
    "races.list": (lambda c: c.races.list(), {"races_pkey"}),
    "races.list in a state": (lambda c: c.races.list(state="active"), {"races_by_state"}),
    "races.list of a project": (
        lambda c: c.races.list(project=PROJECT),
        {"projects_pkey", "races_by_project"},
    ),
    "races, the rounds that go on": (
        lambda c: c._database.read(lambda tx: round_steps.list_active_rounds(tx, "h")),
        {"rounds_needing_driver"},
    ),
    "races, whether an attempt waits for a run": (
        lambda c: read(c, lambda tx: run_lookup.has_attempt(tx, "run_300")),
        {"attempts_of_run"},
    ),
    "races, a round is taken": (
        lambda c: write(c, lambda tx: round_steps.acquire_round(tx, ROUND, "driver:x")),
        {"rounds_pkey", "attempts_by_round", "verdicts_by_round"},
    ),
    "races, worktrees that are there": (
        lambda c: read(c, lambda tx: queries.list_with_worktree(tx, limit=5)),
        {"attempts_with_worktree"},
    ),
    "tasks.get by its key": (lambda c: c.tasks.get("k9"), {*TASK, "tasks_by_key"}),
    "tasks.list": (lambda c: c.tasks.list(), TASK),
    "tasks.list in a state": (
        lambda c: c.tasks.list(project=GRAPH, state="ready"),
        {*TASK, "projects_pkey", "tasks_by_state"},
    ),
    "tasks.list of an agent": (
        lambda c: c.tasks.list(agent=AGENT),
        {*TASK, "agents_pkey", "agent_versions_pkey", "tasks_by_agent"},
    ),
    "tasks.next_lease_end": (lambda c: c.tasks.next_lease_end(), {"tasks_by_lease"}),
    "tasks, the pending checks": (
        lambda c: read(c, review.list_pending_checks),
        {"tasks_to_check", "projects_pkey"},
    ),
    "delegations.list": (lambda c: c.delegations.list(), {"delegations_active"}),
    "delegations.list to an agent": (
        lambda c: c.delegations.list(to=AGENT),
        {"agents_pkey", "agent_versions_pkey", "delegations_to"},
    ),
    "delegations.list from a mailbox": (
        lambda c: c.delegations.list(sender="agent:a5"),
        {"delegations_from"},
    ),
    "delegations.next_deadline": (lambda c: c.delegations.next_deadline(), {"delegations_due"}),
    "progress.list of an agent": (
        lambda c: c.progress.list(agent=AGENT),
        {"agents_pkey", "agent_versions_pkey", "progress_pkey"},
    ),
    "progress.list of a task": (lambda c: c.progress.list(task_id=ONE_TASK), {"progress_by_task"}),
    "runs.enqueue": (lambda c: c.internal.runs.enqueue(run_spec(project_id=RUNS_PROJECT)), set()),
    "runs.get by a shortened id": (lambda c: c.runs.get("run_29999x"), {"runs_pkey"}),
    "runs.get by a name": (lambda c: c.runs.get("7x"), {"runs_by_name", "runs_pkey"}),
    "runs.by_pid": (lambda c: c.runs.by_pid(77), {"runs_by_pid"}),
    "runs.list": (lambda c: c.runs.list(), {"runs_pkey"}),
    "runs.list live": (lambda c: c.runs.list(live=True), {"runs_live"}),
    "runs.list in a state": (lambda c: c.runs.list(state="crashed"), {"runs_by_state"}),
    "runs.list in a state in which hardly any is": (
        lambda c: c.runs.list(state="interrupted"),
        {"runs_by_state"},
    ),
    "runs.list of a project": (
        lambda c: c.runs.list(project=RUNS_PROJECT),
        {"runs_by_project"},
    ),
    "runs.list of a project in a state": (
        lambda c: c.runs.list(project=RUNS_PROJECT, state="failed"),
        {"runs_by_project_state"},
    ),
    "runs.list of a session": (lambda c: c.runs.list(session=SESSION), {"runs_by_session"}),
    "runs with a recorded process": (lambda c: read(c, runs.list_active), {"runs_live"}),
    "runs, room for more": (
        lambda c: read(c, lambda tx: dispatch.count_free_slots(tx, host="h")),
        {"nodes_name_boot_id_key", "runs_pkey", "settings_pkey"},
    ),
    "nodes.daemon_of": (lambda c: c.nodes.daemon_of("h"), {"nodes_name_boot_id_key"}),
    "nodes.leaders": (lambda c: c.nodes.leaders(), {"leaders_pkey"}),
    "runs.next_due": (lambda c: c.runs.next_due(), {"runs_pkey"}),
    "runs, next queued": (
        lambda c: next_queued(c, host="h"),
        {"launches_pkey", "nodes_name_boot_id_key", "projects_pkey", "runs_pkey"},
    ),
    "runs, ended long ago": (
        lambda c: write(c, lambda tx: runs.PRUNABLE.list_keys(tx, before=tx.now, limit=5)),
        {"runs_ended"},
    ),
    "mail.put": (lambda c: c.mail.put("agent:busy", 1), {"its queue position"}),
    "mail.put with a key that was seen": (
        lambda c: c.mail.put("queue:busy", 1, key="open-1"),
        {"letters_by_key", "its queue position"},
    ),
    "mail.claim": (
        lambda c: write(c, lambda tx: mail.claim_letters(tx, "queue:busy", owner="o")),
        {"letters_queue", "letters_pkey"},
    ),
    "mail.claim in order": (
        lambda c: write(c, lambda tx: mail.claim_letters(tx, "agent:busy", owner="o")),
        {"letters_queue", "letters_started", "letters_pkey"},
    ),
    "mail.claim of many in order": (
        lambda c: write(c, lambda tx: mail.claim_letters(tx, "agent:busy", owner="o", limit=10)),
        {"letters_queue", "letters_started", "letters_pkey"},
    ),
    # Added since PostgreSQL last gathered statistics, however many there are now.
    "mail.claim from a mailbox without statistics": (
        lambda c: write(c, lambda tx: mail.claim_letters(tx, "queue:new", owner="o")),
        {"letters_queue", "letters_pkey"},
    ),
    "mail.claim in order from a mailbox without statistics": (
        lambda c: write(c, lambda tx: mail.claim_letters(tx, "agent:new", owner="o")),
        {"letters_queue", "letters_started", "letters_pkey"},
    ),
    "mail.next_due": (lambda c: c.mail.next_due("agent:busy"), {"letters_queue"}),
    "mail.put_last": (
        lambda c: read(c, lambda tx: tx.value(mail_sql.LAST_POSITION, mailbox="agent:busy")),
        {"letters_queue"},
    ),
    "mail.get": (lambda c: c.mail.get("let_5"), {"letters_pkey"}),
    "mail.expire_due": (
        lambda c: c.internal.mail.expire_due(limit=5),
        {"letters_expiring", "letters_pkey"},
    ),
    "mail.list": (lambda c: c.mail.list(), {"letters_queue"}),
    "mail.list of a mailbox": (lambda c: c.mail.list(mailbox="agent:busy"), {"letters_queue"}),
    "mail.list all": (lambda c: c.mail.list(all=True), {"letters_pkey"}),
    "mail.list all of a mailbox": (
        lambda c: c.mail.list(all=True, mailbox="agent:a5"),
        {"letters_by_mailbox"},
    ),
    "mail.list refused": (lambda c: c.mail.list(state="refused"), {"letters_by_state"}),
    "mail.list unconfirmed": (lambda c: c.mail.list(state="unconfirmed"), {"letters_by_state"}),
    "mail.dead": (lambda c: c.mail.dead(), {"letters_by_state"}),
    "events.after": (lambda c: c.events.after(), {"the feed"}),
    "events.newest": (lambda c: c.events.newest(), {"the feed"}),
    "events.newest of a subject": (
        lambda c: c.events.newest(subject="let_7"),
        {"events_by_subject"},
    ),
    "events.newest of a project": (
        lambda c: c.events.newest(project="prj_4"),
        {"events_by_project"},
    ),
    "schedules.fire_due": (
        lambda c: c.schedules.fire_due(limit=3),
        {
            "schedules_due",
            "schedules_pkey",
            "an open schedule",
            "settings_pkey",
            "its queue position",
        },
    ),
    "schedules.next_at": (lambda c: c.schedules.next_at(), {"schedules_due"}),
    "host_requests.list": (lambda c: c.host_requests.list(), {"host_requests_pkey"}),
    "host_requests.list of an agent": (
        lambda c: c.host_requests.list(agent="a7"),
        {"agents_name_key", "agent_versions_pkey", "host_requests_by_agent"},
    ),
    "host_requests.ask": (
        lambda c: c.host_requests.ask("a7", "destination", {"place": PLACE}, key="new"),
        {
            "agent_versions_pkey",
            "agents_name_key",
            "agents_pkey",
            "channels_pkey",
            "tool_grants_pkey",
            "people_pkey",
            "places_pkey",
            "questions_by_key",
            "questions_open_by_asker",
            "host_requests_by_key",
            "host_requests_pkey",
            "host_requests_waiting_of_agent",
            "settings_pkey",
        },
    ),
    "chat, requested secrets": (
        lambda c: read(c, requests.list_waiting_secrets),
        {"host_requests_waiting"},
    ),
    "schedules.next_script": (lambda c: c.schedules.next_script(), {"letters_queue"}),
    "schedules.history": (
        lambda c: c.schedules.history(SCRIPTED),
        {"schedules_pkey", "occurrences_by_schedule", "letters_pkey"},
    ),
    "schedules.list": (lambda c: c.schedules.list(), {"schedules_open"}),
    "schedules.get": (lambda c: c.schedules.get(SCHEDULE), {"schedules_pkey"}),
    "timers.set": (
        lambda c: c.timers.set("agent:a5", 1, delay_ms=5_000),
        {"schedules_by_mailbox", "settings_pkey"},
    ),
    "projects.get by a shortened id": (lambda c: c.projects.get(PROJECT), {"projects_pkey"}),
    "projects.get by its name": (lambda c: c.projects.get("p7"), {"projects_by_name"}),
    "projects.by_dir": (lambda c: c.projects.by_dir("/srv/7"), {"projects_dir_key"}),
    "projects.touch": (lambda c: c.projects.touch(PROJECT), {"projects_pkey"}),
    "projects.list": (lambda c: c.projects.list(), {"projects_recent"}),
    "projects.delete": (
        # the runs of the history are among the first fifty
        lambda c: c.projects.delete("prj_999x"),
        {
            "budgets_pkey",
            "decisions_proposed_by_project",
            "delegations_by_project",
            "plans_by_project",
            "progress_by_project",
            "groups_by_project",
            "locks_live",
            "notes_by_scope",
            "projects_pkey",
            "questions_by_project",
            "outputs_uncleared",
            "races_by_project",
            "runs_by_project",
            "live runs of a project",
            "schedules_by_project",
            "sessions_by_parent",
            "sessions_by_project",
            "settings_pkey",
            "tasks_archived_since",
            "tasks_by_state",
            "file_touches_of_owner",
        },
    ),
    "nodes.list": (lambda c: c.nodes.list(), {"nodes_pkey"}),
    "nodes.mark_lost": (lambda c: c.internal.nodes.mark_lost(), {"nodes_up"}),
    "nodes.acquire_leadership": (
        lambda c: c.internal.nodes.acquire_leadership("loop1", owner="d"),
        set(),
    ),
    "nodes.release_leadership": (
        lambda c: c.internal.nodes.release_leadership("loop1", owner="d"),
        {"leaders_pkey"},
    ),
    "settings.get": (
        lambda c: c.settings.get("mail.max_attempts", agent="a7", project="prj_1"),
        {"settings_pkey"},
    ),
    "settings.list": (lambda c: c.settings.list(scope="agent:a7"), {"settings_pkey"}),
    "outputs.get": (lambda c: c.outputs.get(RUN), {"outputs_pkey"}),
    "outputs.record_progress": (
        lambda c: c.internal.outputs.record_progress(RUN, 7),
        {"outputs_pkey"},
    ),
    "outputs.chunk": (lambda c: c.internal.outputs.chunk(RUN, 1), {"output_chunks_pkey"}),
    "outputs.list_unsealed": (
        lambda c: c.internal.outputs.list_unsealed(host="host1"),
        {"outputs_open"},
    ),
    "outputs.clear_deleted": (
        lambda c: read(c, lambda tx: outputs.list_uncleared(tx, host="host1")),
        {"outputs_uncleared"},
    ),
    "outputs.log": (lambda c: c.outputs.log("run_7", "info", "x"), set()),
    "outputs.log_lines": (lambda c: c.outputs.log_lines("run_7"), {"log_lines_by_run"}),
    "outputs.log_lines of errors": (
        lambda c: c.outputs.log_lines("run_1", level="error"),
        {"log_lines_warnings"},
    ),
    "outputs.log_lines of warnings": (
        lambda c: c.outputs.log_lines("run_0", level="warn"),
        {"log_lines_warnings"},
    ),
    "db.prune, dry run": (
        lambda c: c.db.prune(dry_run=True),
        {
            "alerts_pkey",
            "attempts with worktrees",
            "question_cards_pkey",
            "checkpoint_writes_pkey",
            "checkpoints_pkey",
            "sandbox_outcomes_pkey",
            "messages_pkey",
            "races_ended",
            "idempotency_keys_pkey",
            "charges_pkey",
            "usage_counters_pkey",
            "delegations_pkey",
            "task_dependencies_by_dependency",
            "decisions_pkey",
            "letter_chains_pkey",
            "events_pkey",
            "groups_ended",
            "imports_pkey",
            "letters_by_state",
            "letters_queue",
            "letters_pkey",
            "locks_pkey",
            "outputs_sealed",
            "notes_ended",
            "notes_expiring",
            "posts_pkey",
            "questions_pkey",
            "host_requests_pkey",
            "reactions_pkey",
            "runs_ended",
            "nodes_pkey",
            "plans_pkey",
            "progress_pkey",
            "occurrences_pkey",
            "schedules_pkey",
            "sessions_by_parent",
            "sessions_closed",
            "settings_pkey",
            "tasks_ended",
            "tasks_pkey",
            "tokens_pkey",
            "usage_totals_pkey",
            "file_touches_pkey",
        },
    ),
    "agents.get": (lambda c: c.agents.get("a7"), {"agents_name_key", "agent_versions_pkey"}),
    "agents.get by a shortened id": (
        lambda c: c.agents.get(AGENT),
        {"agents_pkey", "agent_versions_pkey"},
    ),
    "agents.allows": (
        lambda c: c.agents.allows("a7", "t7"),
        {"agents_name_key", "agent_versions_pkey", "tool_grants_pkey"},
    ),
    "checkpoints.put": (lambda c: c.checkpoints.put("t7", "c9", "json", b"x"), set()),
    "checkpoints.put_writes": (
        lambda c: c.checkpoints.put_writes(
            "t7", "c7", "task", [NewCheckpointWrite(1, "c", "json", b"x")]
        ),
        set(),
    ),
    "checkpoints.get, the latest": (lambda c: c.checkpoints.get("t7"), CHECKPOINTS),
    "checkpoints.get": (lambda c: c.checkpoints.get("t7", id="c7"), CHECKPOINTS),
    "checkpoints.history of a part": (lambda c: c.checkpoints.history("t7", ns=""), CHECKPOINTS),
    "checkpoints.history of a thread": (
        lambda c: c.checkpoints.history("t7"),
        {"checkpoints_by_thread", "checkpoint_writes_by_position"},
    ),
    "checkpoints.history of all": (
        lambda c: c.checkpoints.history(limit=2),
        {"checkpoints_pkey", "checkpoint_writes_by_position"},
    ),
    "checkpoints.list": (lambda c: c.checkpoints.list(), {"checkpoints_pkey"}),
    "checkpoints.list of a thread": (
        lambda c: c.checkpoints.list(thread="t7"),
        {"checkpoints_by_thread"},
    ),
    "checkpoints.delete": (
        lambda c: c.checkpoints.delete("t9"),
        {"checkpoints_by_thread", "checkpoint_writes_by_position"},
    ),
    "checkpoints.trim": (lambda c: c.checkpoints.trim("t8", "", ["c8"]), CHECKPOINTS),
    "checkpoints.delete_of_callers": (
        lambda c: c.checkpoints.delete_of_callers(["call6"]),
        {"checkpoints_by_caller", *CHECKPOINTS},
    ),
    "sessions.undo": (lambda c: c.sessions.undo(SESSION), TURNS | {"an open session"}),
    "sessions.append": (lambda c: c.sessions.append(SESSION, "user", "x"), {"an open session"}),
    "sessions.append with a key that was seen": (
        lambda c: c.sessions.append(SESSION, "user", "x", key="k"),
        {"turns_by_key"},
    ),
    "sessions.append_many": (
        lambda c: c.sessions.append_many(SESSION, [{"role": "user", "content": "x", "key": "y"}]),
        {"an open session", "turns_by_key"},
    ),
    "sessions.turns": (lambda c: c.sessions.turns(SESSION, after=3), TURNS),
    "sessions.turns newest first": (lambda c: c.sessions.turns(SESSION, newest=True), TURNS),
    "sessions.turns of a fork": (lambda c: c.sessions.turns(FORK), TURNS),
    "sessions.last": (lambda c: c.sessions.last(SESSION), TURNS),
    "sessions.context": (lambda c: c.sessions.context(SESSION), TURNS),
    "sessions.state": (
        lambda c: c.sessions.state(SESSION),
        {"sessions_pkey", "session_state_pkey"},
    ),
    "sessions.by_provider": (
        lambda c: c.sessions.by_provider("claude", "p7"),
        {"sessions_by_provider"},
    ),
    "sessions.list of an agent": (
        lambda c: c.sessions.list(agent=AGENT),
        {"sessions_open_by_agent", "agents_pkey"},
    ),
    "sessions.list all of an agent": (
        lambda c: c.sessions.list(agent=AGENT, all=True),
        {"sessions_by_agent", "agents_pkey"},
    ),
    "sessions.handoffs": (lambda c: c.sessions.handoffs(SESSION), {"handoffs_pkey"}),
    "sessions.retros": (lambda c: c.sessions.retros(SESSION), {"sessions_pkey", "retros_pkey"}),
    "locks.acquire": (
        lambda c: write(c, lambda tx: locks.acquire(tx, RUNS_PROJECT, "src/new/x", "ada")),
        {"projects_pkey", "locks_live", "locks_of_owner"},
    ),
    "locks.holders": (
        lambda c: c.locks.holders(RUNS_PROJECT, "src/*"),
        {"projects_pkey", "locks_live"},
    ),
    "guard.check": (
        lambda c: c.guard.check(RUNS_PROJECT, ["src/7"], "ada"),
        {"projects_pkey", "locks_live"},
    ),
    "locks.list": (
        lambda c: read(c, lambda tx: lock_queries.list_live(tx, limit=5)),
        {"locks_live"},
    ),
    "locks.list of a project": (
        lambda c: read(c, lambda tx: lock_queries.list_live(tx, project=RUNS_PROJECT, limit=5)),
        {"projects_pkey", "locks_live"},
    ),
    "locks.list all": (
        lambda c: read(c, lambda tx: lock_queries.list_all(tx, limit=5)),
        {"locks_pkey"},
    ),
    "locks.list all of a project": (
        lambda c: read(c, lambda tx: lock_queries.list_all(tx, project=RUNS_PROJECT)),
        {"projects_pkey", "locks_by_project"},
    ),
    "locks.list of an owner": (
        lambda c: read(c, lambda tx: lock_queries.list_of_owner(tx, "a400", limit=5)),
        {"locks_of_owner"},
    ),
    "locks, whether any is due": (lambda c: read(c, locks.has_expired), {"locks_due"}),
    "locks of a run": (
        lambda c: read(c, lambda tx: lock_heartbeat.has_locks(tx, "run_100")),
        {"locks_of_run"},
    ),
    "locks.touch": (
        lambda c: c.locks.touch(RUNS_PROJECT, "src/7", "ada"),
        {"projects_pkey"},
    ),
    "locks.touches": (
        lambda c: c.locks.touches(RUNS_PROJECT, "src/7"),
        {"projects_pkey", "file_touches_project_id_path_owner_key"},
    ),
    "locks.touches of an owner": (
        lambda c: c.locks.touches(RUNS_PROJECT, "src", agent="a7"),
        {"projects_pkey", "file_touches_of_owner"},
    ),
    "projects.containing": (lambda c: c.projects.containing("/srv/7/src/x"), {"projects_dir_key"}),
    "projects near a path": (
        lambda c: read(c, lambda tx: projects.list_overlapping(tx, "/srv/7/src/x")),
        {"projects_dir_key"},
    ),
    "search.find of a rare word": (
        lambda c: read(c, lambda tx: search.find(tx, "zebra")),
        {"passages_pkey", "passages_words"},
    ),
    "search.index_turns": (
        lambda c: c.internal.search.index_turns(limit=10),
        {"turns_pkey", "sessions_pkey", "search_cursors_pkey"},
    ),
    "questions.ask": (
        lambda c: c.questions.ask("x", asker="agent:a5", key="new"),
        {
            "agents_name_key",
            "letter_chains_read_by",
            "questions_by_key",
            "questions_open_by_asker",
            "questions_pkey",
            "runs_active_of_agent",
            "runs_pkey",
            "settings_pkey",
        },
    ),
    "questions.answer": (
        lambda c: c.questions.answer(QUESTION, "x", by="user:x"),
        {"an open question", "questions_pkey", "its queue position"},
    ),
    "questions.expire_due": (
        lambda c: c.internal.questions.expire_due(limit=3),
        {"questions_due", "questions_pkey", "an open question", "its queue position"},
    ),
    "questions.next_due": (lambda c: c.questions.next_due(), {"questions_due"}),
    "questions.list": (
        lambda c: read(c, lambda tx: questions.list_questions(tx)),
        {"questions_open"},
    ),
    "questions.list all": (
        lambda c: read(c, lambda tx: questions.list_questions(tx, all=True)),
        {"questions_pkey"},
    ),
    "questions.list of an asker": (
        lambda c: read(c, lambda tx: questions.list_questions(tx, asker="agent:a5")),
        {"questions_open_by_asker"},
    ),
    "questions.list all of an asker": (
        lambda c: read(c, lambda tx: questions.list_questions(tx, asker="agent:a5", all=True)),
        {"questions_by_asker"},
    ),
    "decisions.record": (
        lambda c: c.decisions.record("x", author="agent:a5", key="new", confirm=True),
        {
            "decisions_by_key",
            "decisions_pkey",
            "decisions_proposed_by_author",
            "settings_pkey",
        },
    ),
    "decisions.confirm": (
        lambda c: c.decisions.confirm(DECISION, by="user:x"),
        {"decisions_pkey", "its queue position"},
    ),
    "decisions.expire_due": (
        lambda c: c.internal.decisions.expire_due(limit=3),
        {"decisions_due", "decisions_pkey", "its queue position"},
    ),
    "decisions.next_due": (lambda c: c.decisions.next_due(), {"decisions_due"}),
    "decisions.list": (
        lambda c: read(c, lambda tx: decisions.list_decisions(tx)),
        {"decisions_pkey"},
    ),
    "decisions.list proposed": (
        lambda c: read(c, lambda tx: decisions.list_decisions(tx, proposed=True)),
        {"decisions_proposed"},
    ),
    "decisions.list of a project": (
        lambda c: read(c, lambda tx: decisions.list_decisions(tx, project=RUNS_PROJECT, limit=5)),
        {"decisions_by_project"},
    ),
    "groups.post": (
        lambda c: c.groups.post(GROUP, "x", author="user:x", key="new"),
        {
            "an open group",
            "groups_pkey",
            "group_members_pkey",
            "one member",
            "posts_by_key",
            "its queue position",
        },
    ),
    "groups.read": (
        lambda c: c.groups.read("g20", member="user:x"),
        {"groups_by_name", "one member", "posts_by_number", "reactions_pkey"},
    ),
    "groups.read newest": (
        lambda c: c.groups.read(GROUP, newest=True),
        {"groups_pkey", "posts_by_number", "reactions_pkey"},
    ),
    "groups.mark": (
        lambda c: c.groups.mark(GROUP, 5, member="user:x"),
        {"groups_pkey", "letters_by_key", "one member"},
    ),
    "groups.unread": (
        lambda c: c.groups.unread(member="agent:a5", limit=5),
        {"an open group", "group_members_by_name"},
    ),
    "messages.list": (lambda c: c.messages.list(limit=5), {"messages_pkey"}),
    "messages.list of a place": (
        lambda c: c.messages.list(place=PLACE, limit=5),
        {"messages_by_place", "places_pkey"},
    ),
    "messages.awaiting_approval": (
        lambda c: c.messages.awaiting_approval(limit=5),
        {"messages_held_by_sender"},
    ),
    "mail.get_all": (lambda c: c.mail.get_all(["let_1", "let_2"]), {"letters_pkey"}),
    "chat.conversations": (
        lambda c: c.chat.conversations(PLACE),
        {"places_pkey", "conversations_by_place"},
    ),
    "messages, an event that came before": (
        lambda c: c.messages.receive(CHANNEL, IncomingEvent(event_id="e2", place="p", sender="s")),
        ARRIVAL | {"messages_pkey"},
    ),
    "messages, an event that is new": (
        lambda c: c.messages.receive(
            CHANNEL, IncomingEvent(event_id="new", place="p2", sender="s2", text="hi")
        ),
        ARRIVAL | LISTENING,
    ),
    "messages, events that come at once": (
        lambda c: c.messages.receive_all(
            CHANNEL,
            [IncomingEvent(event_id=f"e{n}", place="p2", sender="s2", text="hi") for n in (1, 2)],
        ),
        ARRIVAL | LISTENING | {"messages_pkey"},
    ),
    "messages, what is behind": (
        lambda c: read(c, reconciliation.list_stale),
        {"messages_queued"},
    ),
    "chat, conversations with a run": (
        lambda c: read(c, chat_turns.list_busy),
        {"conversations_busy"},
    ),
    "chat, conversation of a session": (
        lambda c: read(c, lambda tx: conversations.find_conversation(tx, SESSION)),
        {"conversations_pkey"},
    ),
    "chat, outcomes of a sandboxed session": (
        lambda c: read(c, lambda tx: sandbox_bridge.collect_outcomes(tx, SESSION)),
        {"sandbox_outcomes_of_session"},
    ),
    "chat, next messages of a run": (
        lambda c: read(c, lambda tx: long_running.has_next(tx, "run_401")),
        {"letters_queue", "letters_started", "letters_pkey", "conversations_busy"},
    ),
    "mail, stalled mailboxes": (
        lambda c: read(c, lambda tx: letters.list_stalled(tx, before=0)),
        {"letters_queue", "letters_started", "letters_pkey"},
    ),
    "chat, places with letters": (
        lambda c: read(c, lambda tx: letters.list_mailboxes(tx, "place")),
        {"letters_queue"},
    ),
    "chat, places with unconfirmed letters": (
        lambda c: c._database.read(lambda tx: letters.list_unconfirmed_mailboxes(tx, "place")),
        {"letters_by_state"},
    ),
    "channels.list": (lambda c: c.channels.list(limit=5), {"channels_by_name"}),
    "places.list of a channel": (
        lambda c: c.places.list(channel=CHANNEL, limit=5),
        {"channels_pkey", "places_channel_id_platform_id_key"},
    ),
    "destinations.list": (
        lambda c: c.destinations.list(agent=AGENT, limit=5),
        {"agents_pkey", "agent_versions_pkey", "destinations_by_name"},
    ),
    "groups.list": (lambda c: c.groups.list(limit=5), {"groups_open"}),
    "notes.add": (
        lambda c: c.notes.add("x", key="new", agent="a5"),
        {
            "agent_versions_pkey",
            "agents_name_key",
            "notes_by_key",
            "notes_current_by_scope",
            "passages_by_subject",
            "passages_pkey",
            "settings_pkey",
        },
    ),
    "notes.search": (
        lambda c: c.notes.search("text", agent="a5"),
        {"agent_versions_pkey", "agents_name_key", "notes_current_by_scope"},
    ),
    "notes.list": (lambda c: c.notes.list(limit=5), {"notes_current"}),
    "notes.list of a scope": (
        lambda c: c.notes.list(everyone=True, limit=5),
        {"notes_current_by_scope"},
    ),
    "notes.record_use": (lambda c: c.notes.record_use(["nte_10x"]), {"notes_pkey"}),
    "secrets.get": (lambda c: c.secrets.get("s7"), {"secrets_pkey"}),
    "charges.add": (lambda c: c.charges.add(UsageFact(model="m1", input=1), run_id="run_7"), set()),
    "charges.add of a counter, with a key": (
        lambda c: c.charges.add(
            UsageFact(model="m1", input=9, counter="c7", key="new"),
            run_id="run_7",
            project_id="prj_1",
        ),
        {"charges_once", "usage_counters_pkey"},
    ),
    "charges.total": (lambda c: c.charges.total("project:prj_1"), {"usage_totals_pkey"}),
    "charges.days": (lambda c: c.charges.days("all", limit=5), {"usage_totals_pkey"}),
    "charges.list": (lambda c: c.charges.list(), {"charges_pkey"}),
    "runs.list of an agent": (lambda c: c.runs.list(agent=RUNS_AGENT, limit=5), {"runs_by_agent"}),
    "events.before": (lambda c: c.events.before("9-9999", limit=5), {"the feed"}),
    "events.before of a subject": (
        lambda c: c.events.before("99999999-99999", subject="let_7", limit=5),
        {"events_by_subject"},
    ),
    "charges.list of a run": (lambda c: c.charges.list(run=RUN), {"charges_by_run"}),
    "charges.list of a session": (
        lambda c: c.charges.list(session=SESSION, limit=5),
        {"charges_by_session"},
    ),
    "charges.list of a project": (
        lambda c: c.charges.list(project=RUNS_PROJECT, limit=5),
        {"charges_by_project"},
    ),
    "charges.unpriced": (lambda c: c.internal.charges.unpriced(limit=5), {"charges_unpriced"}),
    "charges.set_prices": (
        lambda c: c.internal.charges.set_prices([ChargePrice("chg_100", 1, "v1")]),
        {"charges_pkey"},
    ),
    "charges.reserve": (
        lambda c: c.internal.charges.reserve(
            "run_9", project_id="prj_9", agent_id="agn_1", budget_micros=1
        ),
        {"budgets_pkey", "budget_reservations_by_scope", "usage_totals_pkey"},
    ),
    "charges.release": (
        lambda c: c.internal.charges.release("run_9"),
        {"budgets_pkey", "budget_reservations_pkey"},
    ),
    "charges.exceeded_budget": (
        lambda c: c.internal.charges.exceeded_budget("run_9", project_id="prj_9", agent_id="agn_1"),
        {"budgets_pkey", "usage_totals_pkey"},
    ),
    "budgets.list": (
        lambda c: c.budgets.list(limit=5),
        {"budgets_pkey", "budget_reservations_by_scope", "usage_totals_pkey"},
    ),
    "alerts.raise_alert": (
        lambda c: c.internal.alerts.raise_alert("stuck", "run_9", edge=1),
        {"alerts_active"},
    ),
    "tokens.check": (lambda c: c.internal.tokens.check("crl_" + f"{7:064x}"), {"tokens_by_hash"}),
    "tokens.get": (lambda c: c.tokens.get("t7"), {"tokens_by_name"}),
    "tokens.record_use": (
        lambda c: c.internal.tokens.record_use("tok_7x" + "0" * 24),
        {"tokens_pkey"},
    ),
    "idempotency, a new call": (
        call_once("new"),
        {"idempotency_keys_token_id_key_key", "its queue position"},
    ),
    "idempotency, a repeated call": (call_once("k7"), {"idempotency_keys_token_id_key_key"}),
    "alerts.list": (lambda c: c.alerts.list(limit=5), {"alerts_active"}),
    "alerts.list all": (lambda c: c.alerts.list(all=True, limit=5), {"alerts_pkey"}),
    "insights.overview": (
        lambda c: c.insights.overview(),
        {
            "decisions_due",
            "letters_by_state",
            "projects_pkey",
            "questions_due",
            "runs_by_state",
            "runs_ended",
            "runs_failed",
            "tasks_to_review",
            "usage_totals_pkey",
        },
    ),
    "insights.board_at": (
        lambda c: c.insights.board_at(GRAPH, c.now(), limit=20),
        {
            "events_by_subject",
            "events_pkey",
            "locks_granted",
            "projects_pkey",
            "tasks_by_project",
        },
    ),
    "insights.board_at, what was archived since": (
        lambda c: c.insights.board_at(GRAPH, c.now(), after=encode_cursor(1, "")),
        {
            "events_by_subject",
            "events_pkey",
            "locks_granted",
            "projects_pkey",
            "tasks_archived_since",
        },
    ),
    "insights.costs": (lambda c: c.insights.costs(by="model"), {"usage_totals_by_day"}),
    "insights.task_cost": (
        lambda c: c.insights.task_cost("tsk_7x"),
        TASK | {"charges_by_run", "tasks_by_run"},
    ),
    "insights.find_by_name": (
        lambda c: c.insights.find_by_name("a7"),
        {"agents_name_key", "projects_recent", "runs_by_name"},
    ),
    "insights.names": (
        lambda c: c.insights.names([RUNS_PROJECT, RUN, SESSION]),
        {
            "agents_pkey",
            "channels_pkey",
            "places_pkey",
            "projects_pkey",
            "runs_pkey",
            "senders_pkey",
            "sessions_pkey",
        },
    ),
    "insights.races": (
        lambda c: c.insights.races(limit=5),
        {
            "attempts_by_race",
            "attempts_by_round",
            "attempts_pkey",
            "races_pkey",
            "rounds_by_race",
            "runs_pkey",
            "verdicts_by_race",
        },
    ),
    "insights.crashed": (
        lambda c: c.insights.crashed(limit=5),
        {"runs_by_state", "projects_pkey"},
    ),
    "insights.project": (
        lambda c: c.insights.project("/srv/7"),
        {"projects_dir_key", "runs_by_project", "runs_by_project_state", "usage_totals_pkey"},
    ),
}

Explain = Callable[[Call], Plan]


@pytest.fixture
def old_store(empty_url: str) -> Iterator[Corral]:
    """A store with a long history."""
    fill(empty_url, ManualClock().now())
    with corral.open(empty_url, clock=ManualClock(), actor="user:tester") as store:
        store.mail.put("agent:warm", 1)  # opens the write connection
        yield store


@pytest.fixture
def explain(old_store: Corral, empty_url: str) -> Iterator[Explain]:
    """Plans of statements, cached: no plan here depends on parameter values."""
    plans: dict[str, Plan] = {}
    if old_store.db.engine == "sqlite":
        file = apsw.Connection(empty_url.removeprefix("sqlite:///"))
        plan: Callable[..., Plan] = partial(sqlite_plan, file)
    else:
        file = psycopg.connect(empty_url, autocommit=True)
        plan = partial(postgres_plan, file)

    def explain_call(call: Call) -> Plan:
        if call.statement.text not in plans:
            plans[call.statement.text] = plan(*call)
        return plans[call.statement.text]

    with closing(file):
        yield explain_call


def check_plans(
    name: str, calls: list[Call], explain: Explain, indexes: set[str], engine: str
) -> None:
    used: set[str] = set()
    for call in calls:
        plan = explain(call)
        allowed = {ALLOWED_SORT} if name.startswith("search.find") else {ALLOWED_SCANS.get(name)}
        allowed |= (
            ALLOWED_FOR_QUEUE if name in ("runs, next queued", "insights.task_cost") else set()
        )
        allowed |= ALLOWED_FOR_LOCKS if name == "mail.claim of many in order" else set()
        faults = [fault for fault in plan.faults if fault not in allowed]
        assert not faults, f"{call.statement.text}\n\n{plan.text}"
        used |= plan.indexes
    if name in ALLOWED_SCANS and engine == "sqlite":
        return
    if engine == "postgres" and name.startswith(("events.after", "events.before")):
        used.remove("events_pkey")  # the event of the cursor, wherever it was numbered
    if name in ONE_RUN:
        used = {EQUIVALENT.get(index, index) for index in used}
    expected = {BY_ENGINE[item][engine] if item in BY_ENGINE else item for item in indexes} - {None}
    if engine == "sqlite":
        expected = expected.union(*(DEFERRED.get(item, ()) for item in expected))
    assert used == expected


def without_preparation(operation: Operation) -> Operation:
    """Wrap an operation that needs only a store."""
    return lambda _: operation


ALL_CALLS = {
    name: (without_preparation(operation), indexes) for name, (operation, indexes) in CALLS.items()
} | PREPARED_CALLS


def test_operation_uses_its_indexes_and_no_full_scan(
    old_store: Corral, explain: Explain, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(ALL_CALLS) == len(CALLS) + len(PREPARED_CALLS)
    with Cases() as cases:
        for name, (prepare, indexes) in ALL_CALLS.items():
            with cases.case(name):
                operation: Any = prepare(old_store)
                with trace_statements(old_store, monkeypatch) as trace:
                    operation(old_store)
                assert trace.calls
                check_plans(name, trace.calls, explain, indexes, old_store.db.engine)
