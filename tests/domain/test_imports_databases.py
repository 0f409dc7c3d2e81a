"""Imports of other tools' databases: every row once, with times, states and relations."""

from itertools import pairwise
from pathlib import Path

import pytest

from corral.api import Corral
from corral.importers import database_import
from corral.importers.mappings.registry import TOOL_NAMES
from corral.kernel.errors import Refused
from tests.support import source_databases
from tests.support.invariants import check_store
from tests.support.run_factories import add_run
from tests.support.store import contents, raises_without_change, rows

EACH_TOOL = pytest.mark.parametrize("tool", TOOL_NAMES)


def read_files(path: Path) -> dict[str, bytes]:
    """Return the contents of all files below a folder."""
    return {str(file): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def map_ids(store: Corral, tool: str, part: str) -> dict[str, str]:
    pairs = rows(
        store,
        "SELECT row_id, id FROM import_origins WHERE tool = :tool AND source_table = :part",
        tool=tool,
        part=part,
    )
    return dict(pairs)


@EACH_TOOL
def test_every_row_is_imported_and_a_second_import_changes_nothing(
    store: Corral, tool: str, tmp_path: Path
) -> None:
    path = source_databases.MAKERS[tool](tmp_path / "source")
    files = read_files(tmp_path / "source")
    result = store.imports.import_database(tool, path)
    assert (result.known, result.changed, result.missing, result.unknown) == (0, 0, [], [])
    assert result.new == result.rows > 0
    assert read_files(tmp_path / "source") == files, "the import does not change the source"
    check_store(store)
    imported = contents(store)
    second_result = store.imports.import_database(tool, path)
    assert (second_result.new, second_result.changed, second_result.known) == (0, 0, result.rows)
    assert contents(store) == imported


def test_agent_yes_runs_have_correct_times(store: Corral, tmp_path: Path) -> None:
    store.imports.import_database("agent-yes", source_databases.make_agent_yes(tmp_path))
    ids = map_ids(store, "agent-yes", "runs")
    completed, running, failed, crashed = (store.runs.get(ids[key]) for key in "1234")
    assert (completed.state, completed.exit_code, completed.pid) == ("completed", 0, 11)
    assert completed.args == ["--fast"]
    assert completed.started_at is not None
    assert completed.ended_at is not None
    assert completed.ended_at - completed.started_at == 90_000
    assert (failed.state, failed.exit_code) == ("failed", 3)
    assert crashed.state == "crashed"
    assert running.state == "interrupted"
    assert "agent-yes" in (running.reason or "")
    project = store.projects.get(completed.project_id or "")
    assert (project.dir, project.command, project.prompt) == ("/srv/shop", "claude", "fix it")
    assert (project.created_at, project.last_run_at) == (1_770_000_000_000, 1_770_000_200_000)


def test_existing_project_is_not_changed_by_an_import(store: Corral, tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    project = store.projects.register(tmp_path / "shop", command="own")
    path = source_databases.make(
        tmp_path / "s.db",
        source_databases.AGENT_YES,
        {
            "projects": [
                {**source_databases.AGENT_YES_ROWS["projects"][0], "dir": str(tmp_path / "shop")}
            ]
        },
    )
    store.imports.import_database("agent-yes", path)
    assert map_ids(store, "agent-yes", "projects") == {"1": project.id}
    assert store.projects.get(project.id) == project


def test_agents_are_imported_with_tools_sessions_turns_runs_and_costs(
    store: Corral, tmp_path: Path
) -> None:
    store.imports.import_database("agents", source_databases.make_agents(tmp_path))
    agent = store.agents.get("Builder")
    assert (agent.role, agent.model, agent.instructions) == (
        "builder",
        "gpt-4-turbo",
        "Build well.",
    )
    assert agent.updated_at == 1_770_091_506_789
    assert {grant.tool: grant.allowed for grant in store.agents.grants("Builder").items} == {
        "Bash": True,
        "WebFetch": False,
    }
    session = store.sessions.get(map_ids(store, "agents", "session")["s1"])
    assert (session.title, session.agent_id, session.turns) == ("the shop", agent.id, 2)
    turns = store.sessions.turns(session.id).items
    assert [(turn.number, turn.role, turn.content, turn.at) for turn in turns] == [
        (1, "user", "hello", 1_770_000_002_000),
        (2, "assistant", "hi", 1_770_000_003_000),
    ]
    runs = map_ids(store, "agents", "run")
    states = {key: store.runs.get(id).state for key, id in runs.items()}
    assert states == {"u1": "completed", "u2": "cancelled", "u3": "interrupted"}
    (charge,) = store.charges.list(run=runs["u1"]).items
    assert (charge.tokens, charge.cost_micros) == (1_500, 250_000)
    (line,) = store.outputs.log_lines(runs["u1"]).items
    assert (line.level, line.message, line.metadata) == ("warn", "slow", {"ms": 9})
    (setting,) = (
        row for row in store.imports.origins(kept=True).items if row.source_table == "setting"
    )
    assert setting.unmapped == {"key": "theme", "value": "dark"}


def test_imported_agent_with_a_used_name_gets_a_number(store: Corral, tmp_path: Path) -> None:
    agent = store.agents.create("Builder", command="cat")
    store.imports.import_database("agents", source_databases.make_agents(tmp_path))
    assert store.agents.get("Builder").id == agent.id
    assert store.agents.get("Builder-2").instructions == "Build well."


def test_multishot_races_have_rounds_attempts_winners_and_output(
    store: Corral, tmp_path: Path
) -> None:
    store.imports.import_database("multishot", source_databases.make_multishot(tmp_path))
    races = map_ids(store, "multishot", "runs")
    shop, blog = store.races.get(races["r1"]), store.races.get(races["r2"])
    assert (shop.name, shop.state, blog.state) == (
        "a shop",
        "completed",
        "abandoned",
    )
    (first_round,) = shop.rounds
    attempts = map_ids(store, "multishot", "agents")
    assert (first_round.number, first_round.prompt, first_round.winner_id) == (
        1,
        "make a shop",
        attempts["a2"],
    )
    assert [
        (attempt.number, attempt.state, attempt.variation) for attempt in first_round.attempts
    ] == [
        (1, "failed", "plain"),
        (2, "completed", "bold"),
    ]
    (cancelled_attempt,) = blog.rounds[0].attempts
    assert cancelled_attempt.state == "cancelled"
    runs = map_ids(store, "multishot", "agents.run")
    assert first_round.attempts[1].run_id == runs["a2"]
    lines = store.outputs.log_lines(runs["a2"]).items
    assert [line.message for line in lines] == ["begun", "done"]
    all_rows = str(contents(store))
    assert "safe-storage-ref-77" not in all_rows
    assert "anthropic" in all_rows


def test_imported_nanoclaw_channels_and_wirings_are_inactive(store: Corral, tmp_path: Path) -> None:
    store.imports.import_database("nanoclaw", source_databases.make_nanoclaw(tmp_path))
    agent = store.agents.get("Andy")
    assert (agent.admin, agent.provider, agent.workspace) == (False, "claude", "andy")
    assert store.channels.list().items == []
    assert rows(store, "SELECT kind, state FROM channels") == [("telegram", "removed")]
    assert rows(store, "SELECT state, mode, priority FROM wirings") == [("removed", "thread", 10)]
    assert rows(store, "SELECT state, name FROM destinations") == [("revoked", "family")]
    places = {place.platform_id: place for place in store.places.list().items}
    assert (places["chat:7"].name, places["chat:7"].direct) == ("family", False)
    session = store.sessions.get(map_ids(store, "nanoclaw", "sessions")["sess-1"])
    assert (session.state, session.agent_id) == ("open", agent.id)
    assert session.reply_to == f"place:{places['chat:7'].id}"
    assert store.sessions.state(session.id) == {"sdk_session_id": "abc"}
    assert (session.provider, session.provider_session) == ("claude", "abc")
    inbound = rows(
        store,
        "SELECT state, body FROM letters WHERE mailbox = :mailbox ORDER BY seq",
        mailbox=f"session:{session.id}",
    )
    assert [state for state, _ in inbound] == ["done", "expired", "done", "expired"]
    outbound = rows(
        store,
        "SELECT state FROM letters WHERE mailbox = :mailbox",
        mailbox=f"place:{places['chat:7'].id}",
    )
    assert outbound == [("done",)]
    (schedule,) = store.schedules.list().items
    assert (schedule.state, schedule.rule) == ("paused", "0 9 * * *")
    (question,) = store.questions.list(all=True).items
    assert (question.state, question.asker) == ("withdrawn", f"session:{session.id}")


def test_folder_of_one_session_can_be_imported_alone(store: Corral, tmp_path: Path) -> None:
    source_databases.make_nanoclaw(tmp_path)
    result = store.imports.import_database("nanoclaw", tmp_path / "data/v2-sessions/ag-1/sess-1")
    assert result.kept < result.new
    session = store.sessions.get(map_ids(store, "nanoclaw", "sessions")["sess-1"])
    assert store.mail.list(mailbox=f"session:{session.id}", all=True).items
    check_store(store)


def test_flightdeck_team_is_imported_with_its_shared_data(store: Corral, tmp_path: Path) -> None:
    store.imports.import_database("flightdeck", source_databases.make_flightdeck(tmp_path))
    project = store.projects.by_dir("/srv/shop")
    assert (project.name, project.state) == ("Shop", "active")
    lead = store.agents.get("flightdeck-11111111-2222")
    assert (lead.state, lead.role) == ("retired", "lead")
    assert store.agents.get("tester").instructions == "Test."
    conversation = store.sessions.get(map_ids(store, "flightdeck", "conversations")["c1"])
    turns = store.sessions.turns(conversation.id).items
    assert [(turn.role, turn.content) for turn in turns] == [
        ("user", "go"),
        ("assistant", "hm"),
        ("user", "hurry"),
    ]
    session = store.sessions.get(map_ids(store, "flightdeck", "project_sessions")["1"])
    assert (session.project_id, session.agent_id, session.state) == (project.id, lead.id, "closed")
    assert [retro.body for retro in store.sessions.retros(session.id).items] == [{"tasks": 2}]
    tasks = {task.key: task for task in store.tasks.list(project=project.id).items}
    cart, base = tasks["cart@11111111"], tasks["base@11111111"]
    assert (cart.state, base.state, cart.depends_on) == ("paused", "done", [base.key])
    assert store.tasks.resume(cart.id).state == "ready", "its dependency is done"
    check_store(store)


def test_flightdeck_locks_are_ended_and_notes_are_kept(store: Corral, tmp_path: Path) -> None:
    store.imports.import_database("flightdeck", source_databases.make_flightdeck(tmp_path))
    project = store.projects.by_dir("/srv/shop")
    worker = "agent:flightdeck-66666666-7777"
    assert rows(store, "SELECT state, path, owner FROM locks") == [
        ("expired", "src/cart.py", worker)
    ]
    assert rows(store, "SELECT count, owner FROM file_touches") == [(3, worker)]
    (decision,) = store.decisions.list().items
    assert (decision.state, decision.title) == ("confirmed", "use SQLite")
    group, members, post, reaction = (
        rows(store, sql)
        for sql in (
            "SELECT name, state, posts FROM groups",
            "SELECT name FROM group_members ORDER BY name",
            "SELECT author, text FROM posts",
            "SELECT emoji, member FROM reactions",
        )
    )
    assert (group, post) == ([("cart-team", "archived", 1)], [(worker, "done?")])
    assert (members, reaction) == ([(worker,), ("user:human",)], [("+1", "user:human")])
    notes = {note.key: note for note in store.notes.list(project=project.id).items}
    assert notes["core/money"].confidence == 90
    assert [hit.subject for hit in store.search.find("cents").items] == [notes["core/money"].id]
    assert (notes["gotcha/tests"].uses, notes["gotcha/tests"].text) == (4, "run them twice")
    assert rows(store, "SELECT state, kind, rule FROM schedules") == [("paused", "every", "300000")]
    assert rows(store, "SELECT mailbox, state FROM letters") == [(worker, "expired")]
    assert rows(store, "SELECT state FROM delegations") == [("expired",)]
    assert store.charges.total(f"project:{project.id}").cost_micros == 10_000
    events = rows(store, "SELECT at, actor, verb FROM events WHERE kind = 'activity'")
    assert events == [(1_772_359_200_000, worker, "file_edit")]


def test_second_import_of_a_grown_source_adds_only_new_rows(store: Corral, tmp_path: Path) -> None:
    path = source_databases.make_agents(tmp_path)
    store.imports.import_database("agents", path)
    source_databases.grow(
        path,
        {
            "Message": [
                {
                    "id": "m3",
                    "sessionId": "s1",
                    "role": "user",
                    "content": "more",
                    "createdAt": 1_770_000_010_000,
                }
            ]
        },
    )
    second_result = store.imports.import_database("agents", path)
    assert (second_result.new, second_result.changed) == (1, 0)
    session = store.sessions.get(map_ids(store, "agents", "session")["s1"])
    assert [turn.content for turn in store.sessions.turns(session.id).items] == [
        "hello",
        "hi",
        "more",
    ]
    check_store(store)


def test_changed_source_row_is_stored_and_reported_once(store: Corral, tmp_path: Path) -> None:
    path = source_databases.make_agent_yes(tmp_path)
    store.imports.import_database("agent-yes", path)
    run = map_ids(store, "agent-yes", "runs")["2"]
    source_databases.change(
        path, "UPDATE runs SET status = 'completed', exit_code = 0 WHERE id = 2"
    )
    second_result = store.imports.import_database("agent-yes", path)
    assert (second_result.new, second_result.changed) == (0, 1)
    assert store.runs.get(run).state == "interrupted"
    (origin,) = store.imports.origins(id=run).items
    assert origin.unmapped["status"] == "completed"
    assert origin.changed_at is not None
    assert store.imports.import_database("agent-yes", path).changed == 0


def test_moved_database_is_recognized_by_its_name(store: Corral, tmp_path: Path) -> None:
    path = source_databases.make_agent_yes(tmp_path)
    store.imports.import_database("agent-yes", path, source="laptop")
    moved = path.rename(tmp_path / "moved.sqlite")
    second_result = store.imports.import_database("agent-yes", moved, source="laptop")
    assert (second_result.new, second_result.known) == (0, 6)


def test_large_import_is_refused_while_runs_are_active(
    store: Corral, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_import, "MAX_ROWS_BESIDE_RUNS", 5)
    path = source_databases.make_agent_yes(tmp_path)
    run = add_run(store, "running")
    if engine == "sqlite":
        with raises_without_change(store, Refused) as caught:
            store.imports.import_database("agent-yes", path)
        assert run in caught.value.message
    else:
        assert store.imports.import_database("agent-yes", path).new == 6, (
            "PostgreSQL allows concurrent writers"
        )


def test_indirect_dependents_of_an_imported_failed_task_are_blocked(
    store: Corral, tmp_path: Path
) -> None:
    fields = {
        "lead_id": source_databases.LEAD,
        "project_id": "shop-1a2b3c",
        "created_at": source_databases.WHEN,
    }
    chain = ["c", "b", "a"]  # each task depends on the next; the last one failed
    tasks = [
        fields
        | {
            "id": key,
            "role": "developer",
            "dag_status": "pending",
            "depends_on": f'["{dependency}"]',
        }
        for key, dependency in pairwise(chain)
    ]
    failed = {
        "id": "a",
        "role": "developer",
        "dag_status": "failed",
        "completed_at": source_databases.WHEN,
    }
    path = source_databases.make_flightdeck(
        tmp_path / "source", dag_tasks=[*tasks, fields | failed]
    )
    store.imports.import_database("flightdeck", path)
    ids = map_ids(store, "flightdeck", "dag_tasks")
    tasks_by_key = {task.key[0]: task for task in (store.tasks.get(id) for id in ids.values())}
    assert {key: task.failed_dependencies for key, task in tasks_by_key.items()} == {
        "a": 0,
        "b": 1,
        "c": 1,
    }
    assert [tasks_by_key[key].blocked_by_id for key in "bc"] == [
        tasks_by_key["a"].id,
        tasks_by_key["a"].id,
    ]
    check_store(store)
    for key in "bc":
        assert store.tasks.resume(tasks_by_key[key].id).state == "blocked"
    assert store.tasks.skip(tasks_by_key["a"].id).state == "skipped"
    assert [store.tasks.get(tasks_by_key[key].id).state for key in "bc"] == ["ready", "pending"]
    check_store(store)
