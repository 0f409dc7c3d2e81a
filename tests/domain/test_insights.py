"""Insights: what is going on, how runs went, and what they cost."""

from pathlib import Path
from typing import Any

import pytest

from corral.adapters.providers.facts import UsageFact
from corral.api import Corral
from corral.domain.insights import ops
from corral.kernel.clock import DAY, HOUR, MINUTE, SECOND, ManualClock, utc_date
from corral.kernel.errors import Invalid, NotFound
from tests.support.run_factories import add_run
from tests.support.store import unchanged, walk
from tests.support.task_factories import project_with


def ended(store: Corral, state: str, took: int, *, ago: int = 0, **columns: Any) -> str:
    """A run that ended so long ago, and took so long."""
    end = store.now() - ago
    return add_run(store, state, end - took, ended_at=end, **columns)


# -- overview -------------------------------------------------------------------------------------


def test_empty_store_has_an_overview(store: Corral) -> None:
    with unchanged(store):
        found = store.insights.overview()
    assert (found.active, found.attention, found.failed, found.queued) == ([], [], [], 0)
    assert (found.dead_letters, found.today.charges, found.today.cost_micros) == (0, 0, None)
    assert found.more is False


def test_overview_shows_active_queued_failed_runs_and_cost(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    project = store.projects.register(tmp_path)
    running = add_run(store, "running", project_id=project.id, name="busy")
    asking = add_run(store, "running", attention="needs_input", attention_at=clock.now() - MINUTE)
    stopping = add_run(store, "stopping")
    add_run(store, "queued")
    add_run(store, "completed")
    crashed = ended(store, "crashed", SECOND, ago=HOUR, reason="it vanished", signal=9)
    failed = ended(store, "failed", SECOND, ago=2 * HOUR, exit_code=3)
    ended(store, "failed", SECOND, ago=25 * HOUR)
    store.settings.set("mail.max_attempts", 1)
    store.mail.put("queue:q", "x")
    (letter,) = store.mail.claim("queue:q", owner="o")
    store.mail.fail(letter, "no")
    store.charges.add(UsageFact(model="m", input=5, cost_micros=70), run_id=running)

    found = store.insights.overview()
    assert [run.id for run in found.active] == [stopping, asking, running]
    assert (found.active[2].project, found.active[2].name) == (project.name, "busy")
    assert [(run.id, run.attention) for run in found.attention] == [(asking, "needs_input")]
    assert [(run.id, run.state) for run in found.failed] == [
        (crashed, "crashed"),
        (failed, "failed"),
    ]
    assert (found.failed[0].reason, found.failed[1].exit_code) == ("it vanished", 3)
    assert (found.queued, found.dead_letters, found.unconfirmed_letters) == (1, 1, 0)
    assert (found.today.cost_micros, found.today.tokens) == (70, 5)
    assert found.more is False


def test_only_submitted_tasks_without_a_check_need_attention(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    wanted = [{"key": "A"}, {"key": "B", "check": "true"}, {"key": "C"}, {"key": "D"}]
    project = project_with(store, tmp_path, *wanted)
    for key in "CBA":
        clock.advance(1_000)
        task = store.tasks.claim(project, "ada", key=key)
        assert task is not None
        store.tasks.submit(task, "it is done")
    found = store.insights.overview()
    assert [(task.key, task.project) for task in found.submitted] == [
        ("C", tmp_path.name),
        ("A", tmp_path.name),
    ]
    assert found.submitted_tasks == 2
    store.tasks.accept("C")
    store.tasks.reject("A", "not yet")
    found = store.insights.overview()
    assert (found.submitted, found.submitted_tasks) == ([], 0)


def test_overview_of_many_runs_is_truncated_and_says_so(store: Corral) -> None:
    ids = [add_run(store, "running") for _ in range(ops.MAX_SHOWN + 3)]
    found = store.insights.overview()
    assert [run.id for run in found.active] == ids[: -ops.MAX_SHOWN - 1 : -1]
    assert found.more is True


# -- one project ----------------------------------------------------------------------------------


def test_project_has_its_latest_run_and_counts_by_state(store: Corral, tmp_path: Path) -> None:
    project = store.projects.register(tmp_path)
    for state in ("completed", "completed", "crashed"):
        add_run(store, state, project_id=project.id)
    latest = add_run(store, "failed", project_id=project.id, exit_code=7, args='["-x"]')
    add_run(store, "completed", project_id="prj_other")
    store.charges.add(UsageFact(model="m", output=3, cost_micros=9), project_id=project.id)

    found = store.insights.project(str(tmp_path / "."))
    assert found.project.id == project.id
    assert found.latest_run is not None
    assert (found.latest_run.id, found.latest_run.exit_code, found.latest_run.args) == (
        latest,
        7,
        ["-x"],
    )
    assert (found.total_runs, found.exact) == (4, True)
    assert found.states == {"completed": 2, "failed": 1, "crashed": 1}
    assert found.total.cost_micros == 9


def test_project_that_never_ran_has_no_latest_run(store: Corral, tmp_path: Path) -> None:
    store.projects.register(tmp_path)
    found = store.insights.project(str(tmp_path))
    assert (found.latest_run, found.total_runs, found.states) == (None, 0, {})
    with pytest.raises(NotFound):
        store.insights.project("/srv/none")


def test_counts_stop_at_a_limit_and_say_so(
    store: Corral, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "MAX_COUNTED_RUNS", 3)
    project = store.projects.register(tmp_path)
    for _ in range(5):
        add_run(store, "completed", project_id=project.id)
    found = store.insights.project(str(tmp_path))
    assert (found.total_runs, found.exact) == (3, False)


# -- crashed runs ---------------------------------------------------------------------------------


def test_crashed_runs_are_listed_newest_first_with_reason_and_directory(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    project = store.projects.register(tmp_path)
    ids = []
    for n in range(5):
        clock.advance(SECOND)
        ids.append(
            add_run(store, "crashed", project_id=project.id, pid=100 + n, signal=9, reason="gone")
        )
        add_run(store, "failed", project_id=project.id)
    lone = add_run(store, "crashed", clock.now() + 1)
    found = walk(store.insights.crashed)
    assert [run.id for run in found] == [lone, *ids[::-1]]
    assert (found[0].dir, found[1].dir) == (None, project.dir)
    assert (found[1].pid, found[1].signal, found[1].reason) == (104, 9, "gone")
    assert (found[1].command, found[1].args) == ("claude", [])


# -- how runs went --------------------------------------------------------------------------------


def test_runs_are_counted_by_outcome(store: Corral) -> None:
    ends = ["completed"] * 3 + ["failed", "crashed", "cancelled", "timed_out", "interrupted"]
    for state in ends:
        add_run(store, state, provider="claude")
    add_run(store, "running", provider="claude")
    (found,) = store.insights.stats(by="provider").items
    assert (found.key, found.runs, found.completed, found.failed) == ("claude", 8, 3, 1)
    assert (found.crashed, found.cancelled, found.timed_out, found.interrupted) == (1, 1, 1, 1)
    # Whoever cancels a run says nothing of how it did.
    assert found.success_rate == round(3 / 7, 4)


def test_group_of_cancelled_runs_has_no_success_rate(store: Corral) -> None:
    add_run(store, "cancelled")
    (found,) = store.insights.stats(by="model").items
    assert (found.key, found.success_rate) == (None, None)


@pytest.mark.parametrize(
    ("durations", "median", "p95"),
    [
        ([7], 7, 7),
        ([10, 20], 15, 20),
        ([30, 10, 20], 20, 30),
        (list(range(1, 101)), 50, 95),
        (list(range(1, 21)), 10, 19),
        (list(range(1, 22)), 11, 20),
    ],
)
def test_median_and_p95_are_exact(
    store: Corral, durations: list[int], median: int, p95: int
) -> None:
    for took in durations:
        ended(store, "completed", took, model="m")
    add_run(store, "cancelled", model="m", started_at=None)  # it never began
    (found,) = store.insights.stats(by="model").items
    assert (found.runs, found.median_ms, found.p95_ms) == (len(durations) + 1, median, p95)


def test_runs_that_never_started_have_no_duration(store: Corral) -> None:
    add_run(store, "failed", started_at=None)
    (found,) = store.insights.stats(by="project").items
    assert (found.median_ms, found.p95_ms) == (None, None)


def test_clock_jump_back_gives_no_negative_duration(store: Corral) -> None:
    ended(store, "completed", -5_000)
    (found,) = store.insights.stats(by="project").items
    assert found.median_ms == 0


def test_tokens_and_cost_are_summed_and_unknown_stays_unknown(store: Corral) -> None:
    add_run(store, "completed", model="a", tokens=5, cost_micros=7)
    add_run(store, "completed", model="a", tokens=6, cost_micros=8)
    add_run(store, "completed", model="a")
    add_run(store, "completed", model="b")
    one, other = store.insights.stats(by="model").items
    assert (one.tokens, one.cost_micros, one.unpriced) == (11, 15, 1)
    assert (other.tokens, other.cost_micros, other.unpriced) == (None, None, 1)


def test_groups_are_paginated_by_key(store: Corral, tmp_path: Path) -> None:
    project = store.projects.register(tmp_path)
    for agent in ("agn_b", None, "agn_a", "agn_c", None):
        add_run(store, "completed", agent_id=agent, project_id=project.id)
    found = walk(store.insights.stats, by="agent", limit=1)
    assert [(row.key, row.runs) for row in found] == [
        (None, 2),
        ("agn_a", 1),
        ("agn_b", 1),
        ("agn_c", 1),
    ]
    (row,) = store.insights.stats(by="project").items
    assert (row.key, row.label, row.runs) == (project.id, project.name, 5)


def test_days_are_utc_days_in_order(store: Corral, clock: ManualClock) -> None:
    clock.at = clock.now() // DAY * DAY + HOUR
    for ago in (0, 2 * HOUR, 3 * DAY, 3 * DAY):
        ended(store, "completed", SECOND, ago=ago)
    found = walk(store.insights.stats, by="day", limit=1)
    today = clock.now()
    assert [(row.key, row.runs) for row in found] == [
        (utc_date(today - 3 * DAY), 2),
        (utc_date(today - DAY), 1),
        (utc_date(today), 1),
    ]


def test_since_limits_the_statistics(store: Corral) -> None:
    for ago in (0, 2 * DAY, 10 * DAY):
        ended(store, "completed", 20 * DAY, ago=ago)
    for since, runs in ((DAY, 1), (7 * DAY, 2), (None, 3)):
        (found,) = store.insights.stats(since_ms=since).items
        assert found.runs == runs


def test_invalid_arguments_are_rejected(store: Corral) -> None:
    for arguments in ({"by": "mood"}, {"since_ms": -1}, {"limit": 0}, {"after": "?"}):
        with pytest.raises(Invalid):
            store.insights.stats(**arguments)


# -- what the pages ask ---------------------------------------------------------------------------


def test_overview_shows_the_last_ended_runs(store: Corral, clock: ManualClock) -> None:
    first = ended(store, "completed", SECOND, ago=3 * DAY)
    second = ended(store, "failed", SECOND, ago=2 * DAY)
    add_run(store, "running", seen_at=clock.now() - SECOND)
    found = store.insights.overview()
    assert [run.id for run in found.recent] == [second, first]
    assert found.active[0].seen_at == clock.now() - SECOND


def test_names_are_resolved_by_id(store: Corral, tmp_path: Path) -> None:
    project = store.projects.register(tmp_path)
    agent = store.agents.create("ada")
    session = store.sessions.open(title="the tests")
    untitled = store.sessions.open()
    named, plain = add_run(store, "running", name="nightly"), add_run(store, "running")
    asked = [project.id, agent.id, session.id, untitled.id, named, plain, plain, "run_none"]
    assert store.insights.names(asked) == {
        project.id: project.name,
        agent.id: "ada",
        session.id: "the tests",
        untitled.id: untitled.id,
        named: "nightly",
        plain: "claude",
    }
    assert store.insights.names([]) == {}
    with pytest.raises(Invalid):
        store.insights.names([f"run_{n}" for n in range(ops.MAX_NAMES + 1)])


def test_records_are_found_by_name_prefix(store: Corral, tmp_path: Path) -> None:
    folder = tmp_path / "Harbour"
    folder.mkdir()
    project = store.projects.register(folder)
    agent = store.agents.create("harry")
    run = add_run(store, "completed", name="harvest")
    add_run(store, "completed", name="other")
    assert {found.id for found in store.insights.find_by_name("har")} == {project.id, agent.id, run}
    assert [found.label for found in store.insights.find_by_name("zz")] == []
    with pytest.raises(Invalid):
        store.insights.find_by_name("  ")


def test_costs_are_listed_per_day_and_agent(store: Corral, clock: ManualClock) -> None:
    for ago, agent, cost in ((40, "agt_a", 9), (2, "agt_a", 5), (0, "agt_b", 7), (0, "agt_a", 1)):
        store.charges.add(
            UsageFact(model="m", input=3, cost_micros=cost),
            agent_id=agent,
            at=clock.now() - ago * DAY,
        )
    store.charges.add(UsageFact(model=None, input=4), agent_id="agt_c")
    found = store.insights.costs(by="agent", days=30)
    assert [(row.key, row.cost_micros, row.tokens) for row in found] == [
        ("agt_a", 5, 3),
        ("agt_a", 1, 3),
        ("agt_b", 7, 3),
        ("agt_c", None, 4),
    ]
    assert found[0].day == utc_date(clock.now() - 2 * DAY)
    assert [row.key for row in store.insights.costs(by="model", days=1)] == ["m"]
    assert store.insights.costs(by="project") == []
    for wrong in ({"by": "day"}, {"days": 0}, {"days": 1_000}):
        with pytest.raises(Invalid):
            store.insights.costs(**wrong)


def test_charge_belongs_to_the_task_of_its_run(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    project = project_with(store, tmp_path, "one", "two", "other")
    run, another = (add_run(store, "running") for _ in range(2))
    for key, by, cost in (("one", run, 1), ("other", another, 10), ("two", run, 100)):
        clock.advance(MINUTE)
        store.tasks.claim(project, "ada", key=key, run=by)
        clock.advance(MINUTE)
        store.charges.add(UsageFact(model="m", input=cost, cost_micros=cost), run_id=by)
    walked = walk(store.insights.task_costs, project=project)
    assert [(cost.key, cost.tokens, cost.cost_micros) for cost in walked] == [
        ("one", 1, 1),
        ("two", 100, 100),
        ("other", 10, 10),
    ]
    assert [store.insights.task_cost(cost.id) for cost in walked] == walked
