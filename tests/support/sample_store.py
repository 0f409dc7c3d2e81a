"""A store with sample content, for the pages and their tests."""

import random
import signal
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from corral.adapters.channels.contract import IncomingEvent, StoredFile
from corral.adapters.providers.facts import UsageFact
from corral.api import Corral
from corral.domain.races.model import CheckResult
from corral.domain.runs.model import ResourceSample
from corral.kernel.clock import DAY, HOUR, MINUTE, SECOND
from tests.support.race_factory import BAD, GOOD, RaceFactory
from tests.support.run_factories import add_launch, add_run

TITLES = (
    "Fix the flaky login test",
    "Review the last commit",
    "Write release notes for 2.4",
    "Migrate settings to the new format",
    "Find out why the build is slow",
    "Translate the error messages",
    "Remove the unused endpoints",
    "Check the licences of all dependencies",
)
HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=alert(1)> "
    "\x1b[31mred\x1b]0;t\x07 \u202egnp"
)


class SampleStore:
    """The sample content and the ids that tests need."""

    def __init__(
        self, store: Corral, folder: Path, *, seed: int = 7, host: str | None = None
    ) -> None:
        """Add all sample content. `host` has the worktrees of the races (default: this machine)."""
        self.store = store
        self._host = host
        self.folder = folder
        self._rng = random.Random(seed)
        self.projects = [self._project(name) for name in ("harbour", "lighthouse", "tide-tables")]
        self.agents = self._agents()
        self.add_past_runs()
        self.add_sessions()
        self.add_mail()
        self.add_schedules()
        self.add_budgets()
        self.add_settings()
        self.add_team()
        self.add_races()
        self.add_chats()

    def _project(self, name: str) -> Any:
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        return self.store.projects.register(folder, command="claude" if name == "harbour" else None)

    def _agents(self) -> list[Any]:
        create = self.store.agents.create
        ada = create(
            "ada",
            role="reviewer",
            provider="claude",
            model="claude-opus-4-6",
            instructions="Read the whole diff first.\nBe brief.",
        )
        self.store.agents.edit(ada.id, instructions="Read the diff. Say what is wrong, and why.")
        self.store.agents.edit(ada.id, model="claude-sonnet-4-6")
        self.store.agents.grant(ada.id, "Bash(git *)")
        self.store.agents.grant(ada.id, "WebFetch", allow=False)
        grace = create("grace", role="builder", provider="codex", model="gpt-5.3-codex")
        return [self.store.agents.get(ada.id), grace]

    def add_past_runs(self) -> None:
        """Add runs that ended during the last weeks, most of them completed."""
        now = self.store.now()
        moments = sorted(self._rng.randrange(20 * MINUTE, 20 * DAY) for _ in range(60))
        for n, ago in enumerate(reversed(moments)):
            started_at = now - ago
            duration = self._rng.randrange(20 * SECOND, 40 * MINUTE)
            state = self._rng.choice(["completed"] * 7 + ["failed", "crashed", "cancelled"])
            agent = self._rng.choice(self.agents)
            self.add(state, started_at, duration, title=TITLES[n % len(TITLES)], agent=agent)
        self.add(
            "crashed",
            now - 3 * HOUR,
            9 * MINUTE,
            title="Rebuild the search index",
            signal=int(signal.SIGKILL),
            reason="signal 9",
        )
        self.add(
            "failed",
            now - 50 * MINUTE,
            4 * MINUTE,
            title="Deploy the preview",
            name="preview",
            exit_code=2,
            reason="exit code 2",
        )

    def add(
        self, state: str, started_at: int, duration: int, *, agent: Any = None, **columns: Any
    ) -> str:
        project = self._rng.choice(self.projects)
        tokens = self._rng.randrange(2_000, 400_000)
        cost = tokens * self._rng.randrange(3, 12)
        model = agent.model if agent else "claude-sonnet-4-6"
        is_live = state in ("queued", "starting", "running", "stopping")
        run = add_run(
            self.store,
            state,
            started_at,
            project_id=project.id,
            agent_id=agent.id if agent else None,
            agent_version=agent.version if agent else None,
            provider=agent.provider if agent else "claude",
            model=model,
            tokens=tokens,
            cost_micros=cost,
            ended_at=None if is_live else min(started_at + duration, self.store.now()),
            cwd=project.dir,
            **columns,
        )
        self.launch(run)
        self.store.charges.add(
            UsageFact(model=model, input=tokens * 3 // 4, output=tokens // 4, cost_micros=cost),
            run_id=run,
            project_id=project.id,
            agent_id=agent.id if agent else None,
            provider="claude",
            at=started_at,
        )
        return run

    def launch(self, run: str) -> None:
        add_launch(self.store, run)

    def samples(self, run: Any, count: int = 60) -> None:
        """Add resource samples of a running run, every two seconds until now."""
        now, cpu = self.store.now(), 0
        for n in range(count):
            cpu += self._rng.randrange(100, 1_900)
            memory = 180_000_000 + n * 1_000_000 + self._rng.randrange(20_000_000)
            self.store.internal.runs.add_sample(
                run, ResourceSample(now - (count - n) * 2 * SECOND, cpu, memory, 3)
            )

    def add_sessions(self) -> None:
        store, (ada, grace) = self.store, self.agents
        session = store.sessions.open(
            ada.id, project=self.projects[0].id, title="Why is the login test flaky?"
        )
        call = {"file_path": "tests/test_login.py"}
        store.sessions.append_many(
            session.id,
            [
                {"role": "user", "content": "The login test fails one time in ten. Find out why."},
                {"role": "assistant", "content": "I will read the test first."},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_name": "Read",
                    "tool_call_id": "c1",
                    "arguments": call,
                },
                {
                    "role": "tool",
                    "content": "def test_login(browser):\n    browser.open('/')\n    "
                    "time.sleep(0.1)\n    assert browser.title == 'Hello'",
                    "tool_call_id": "c1",
                    "tool_name": "Read",
                },
                {
                    "role": "assistant",
                    "content": "",
                    "tool_name": "Bash",
                    "tool_call_id": "c2",
                    "arguments": {"command": "pytest -x tests/test_login.py"},
                },
                {
                    "role": "tool",
                    "content": "1 failed in 0.31s",
                    "tool_call_id": "c2",
                    "tool_name": "Bash",
                    "is_error": True,
                },
                {
                    "role": "assistant",
                    "content": "The test sleeps for a tenth of a second instead "
                    "of waiting for the title.\n\nI suggest to wait for the title, with a limit.",
                },
                {"role": "user", "content": HOSTILE},
            ],
        )
        store.sessions.handoff(session.id, grace.id, note="Please make the change.")
        store.sessions.set_state(session.id, "branch", "fix/login")
        self.session = store.sessions.get(session.id)
        store.sessions.close(store.sessions.open(title="An old session").id)

    def add_mail(self) -> None:
        mail = self.store.mail
        self.store.settings.set("mail.max_attempts", 1)
        for mailbox, text in (
            ("hook:alerts", "the nightly build is red"),
            ("agent:ada", HOSTILE),
        ):
            mail.put(mailbox, text, sender="agent:grace")
            (letter,) = mail.claim(mailbox, owner="worker-1")
            mail.fail(letter, "connection refused by 192.0.2.7:443")
        mail.put("place:chat", "Deployed 2.4.")
        (letter,) = mail.claim("place:chat", owner="worker-1")
        mail.begin_delivery(letter)
        self.store.settings.unset("mail.max_attempts")
        mail.put("agent:ada", "please look at the build", key="build-7")
        mail.put("queue:builds", {"commit": "4f1c2a9", "branch": "main"})

    def add_schedules(self) -> None:
        create = self.store.schedules.create
        create(
            "agent:ada",
            "morning review",
            cron="0 9 * * 1-5",
            time_zone="Europe/Berlin",
            name="stand-up",
        )
        create("queue:builds", {"what": "nightly"}, every_ms=6 * HOUR, name="nightly build")
        paused = create("agent:grace", "tidy up", every_ms=DAY, name="tidy")
        self.store.schedules.pause(paused.id)
        self.store.timers.set("agent:ada", "look at the deployment again", delay_ms=25 * MINUTE)

    def add_budgets(self) -> None:
        self.store.budgets.set("all", 40_000_000, period="day")
        self.store.budgets.set(f"project:{self.projects[1].id}", 3_000_000)
        self.store.charges.add(UsageFact(model=None, input=900, output=80), run_id="run_unknown")

    def add_settings(self) -> None:
        self.store.settings.set("runs.max_concurrent", 8)
        self.store.secrets.set("GITHUB", "env:GITHUB_TOKEN")
        self.store.alerts.add(["crashed", "needs_input"], target_kind="mailbox", target="user:me")

    def add_team(self) -> None:
        """Add a task graph in many states, and the messages of the team."""
        store, project = self.store, self.projects[0].id
        self.tasks = store.tasks.declare(
            project,
            [
                {"key": "design", "title": "Design the new harbour"},
                {"key": "wall", "title": "Build the wall", "depends_on": ["design"]},
                {"key": "light", "title": "Mount the light", "depends_on": ["design"]},
                {"key": "paint", "title": HOSTILE, "depends_on": ["wall"], "files": ["src"]},
                {"key": "survey", "title": "Survey the sea bed", "priority": 5},
                {"key": "buoys", "title": "Order buoys", "description": HOSTILE},
                {"key": "open", "title": "Open it", "depends_on": ["wall", "light", "design"]},
            ],
        )
        run = store.runs.list(limit=1).items[0].id
        store.tasks.claim(project, "grace", key="design", run=run)
        evidence = {
            "text": HOSTILE,
            "commits": ["4f1c2a9"],
            "commands": [{"command": "make test", "exit_code": 0, "output": HOSTILE}],
        }
        store.tasks.submit("design", evidence, agent="grace")
        store.tasks.accept("design")
        store.tasks.claim(project, "grace", key="wall", run=run)
        store.progress.report(HOSTILE, agent="grace", percent=40, task="wall", project=project)
        store.charges.add(
            UsageFact(model="gpt-5.3-codex", input=900, output=90, cost_micros=120_000), run_id=run
        )
        store.tasks.claim(project, "ada", key="survey")
        store.tasks.submit("survey", "Sounded all of it.", agent="ada")
        store.tasks.claim(project, "ada", key="buoys")
        store.tasks.fail("buoys", HOSTILE, agent="ada")
        store.locks.acquire(project, "src/wall.py", "grace", reason=HOSTILE)
        store.locks.request(project, "src", "ada")
        store.locks.touch(project, "src/wall.py", "grace")
        store.questions.ask(HOSTILE, options=["granite", HOSTILE], asker="agent:grace")
        store.questions.ask("How high?", asker="agent:ada", answerers=["user:me"])
        store.decisions.record("Use granite", rationale=HOSTILE, confirm=True, author="agent:grace")
        store.decisions.record("Paint it white", author="agent:ada", alternatives=[HOSTILE])
        self.group = store.groups.create("masons", members=["agent:grace", "agent:ada"])
        store.groups.post(self.group.id, HOSTILE, author="agent:grace")
        store.groups.post(self.group.id, "Looks good.", author="agent:ada", reply_to=1)
        store.groups.react(self.group.id, 1, "\N{EYES}", member="agent:ada")
        store.groups.send("agent:grace", "Hurry up.", author="agent:ada")
        self.note = store.notes.add(HOSTILE, project=project, key="stone", source="agent:grace")
        store.notes.add("The tide is highest at noon.", category="gotcha")

    def add_races(self) -> None:
        """Add races in many states: continued, branched, failed and running."""
        app = "".join(f"def step_{n}(x):\n    return x + {n}\n\n\n" for n in range(30))
        files: dict[str, str | bytes] = {"app.py": app, "docs/notes.md": "# Notes\n\nNone.\n"}
        race_factory = RaceFactory(self.store, self.folder, files, host=self._host)
        quick = app.replace("return x + 7", "return x + 7  # cached").replace("x + 21", "21 + x")
        race = race_factory.start(
            *("ada", "grace", "linus", "ada"),
            prompt="Make the steps faster\n\nDo not change what they give back.",
            variations=[None, "Be bold.", HOSTILE],
            checks=["pytest -q", "ruff check"],
            judge="solomon",
            budget_micros=5_000_000,
            rounds=3,
        )
        lint = CheckResult("ruff check", 0, 310)
        race_factory.end(
            race, 1, {"app.py": quick, "docs/notes.md": "# Notes\n"}, checks=[GOOD, lint]
        )
        bold = {"app.py": app[: len(app) // 2], "fast.py": f"# {HOSTILE}\n" + app, "x.bin": b"\0\1"}
        race_factory.end(race, 2, bold, checks=[GOOD, lint], cost_micros=480_000, took=400_000)
        race_factory.end(race, 3, {"app.py": app + HOSTILE}, checks=[replace(BAD, output=HOSTILE)])
        race_factory.end(race, 4, state="failed", cost_micros=None, reason=HOSTILE, exit_code=3)
        race_factory.judge(race, [[1], [2]], f"A is clearer. {HOSTILE}")
        race_factory.judge(race, None, "no ranking in the output")
        race = race_factory.settle(race)
        race_factory.select(race, "1", reason="It is the smallest.")
        race_factory.select(race, "2", reason=f"I like it. {HOSTILE}", overrule=True)
        race_factory.next(race, "grace", "linus", prompt="Now the tests")
        race_factory.end(race, 1, {"tests.py": "def test_it():\n    pass\n"}, checks=[GOOD, lint])
        race_factory.end(race, 2, {"tests.py": "# nothing\n"}, checks=[BAD], cost_micros=60_000)
        race_factory.settle(race)
        race_factory.select(race, "1")
        race_factory.next(race, "ada", "linus", from_round=1, prompt="Another way")
        race_factory.end(race, 1, {"app.py": quick}, checks=[GOOD, lint])
        race_factory.end(race, 2, {"app.py": quick + "\n"}, checks=[GOOD, lint], cost_micros=90_000)
        self.race = race_factory.settle(race)
        failed_race = race_factory.start("linus", "grace", prompt=HOSTILE, host="elsewhere")
        race_factory.end(failed_race, 1, checks=[BAD])
        race_factory.end(failed_race, 2, state="timed_out", reason="timed out")
        race_factory.settle(failed_race)
        under_way = race_factory.start("ada", "grace", "linus", prompt="Write the manual")
        race_factory.begin(under_way, 1, cost_micros=14_000)
        race_factory.begin(under_way, 2)
        race_factory.end(under_way, 3, {"manual.md": "# Manual\n"})
        self.under_way = under_way
        race_factory.start(
            *("ada", "grace"),
            prompt="Try every option",
            setup="make setup",
            auto=True,
            stop_after=1,
            approvals=["edit"],
            sandbox="auto",
            unsandboxed_commands=True,
        )
        abandoned = race_factory.start("ada", prompt="An old idea", host="elsewhere")
        self.store.races.abandon(abandoned.id, reason="no longer needed")

    def add_chats(self) -> None:
        """Add chats in the dashboard and on an unreachable platform, with a held message.

        No pending message would start an agent.
        """
        store = self.store
        desk = store.channels.add("desk", "web", policy="strict")
        self.talk = store.places.register("desk", "me:ada", name="ada", direct=True)
        store.wirings.add("ada", place=self.talk.id)
        self._receive(desk, "me:ada", "Why is the login test flaky?")
        self._receive(desk, "me:ada", HOSTILE)
        self._reply(desk, self.talk, "It races with the clock. I have a fix.", HOSTILE)
        store.secrets.set("quay-secret", "env:NOT_SET_ANYWHERE")
        quay = store.channels.add("quay", "webhook", secrets={"secret": "quay-secret"})
        self._receive(quay, "room", HOSTILE, sender="mallory", place_name=HOSTILE[:80])
        self.room = store.places.get("quay/room")
        store.wirings.add(
            "grace", place=self.room.id, trigger="pattern", pattern="deploy|<script>", priority=2
        )
        store.wirings.add("ada", channel="quay", trigger="mention", unmatched="keep", mode="thread")
        store.senders.approve("quay/ann", person="ann")
        self._receive(quay, "room", "The build looks good today.", sender="ann")
        (undelivered,) = store.messages.send_as_system(self.room.id, "The report is ready.")
        store.mail.drop(str(undelivered.letter_id), reason=HOSTILE)
        store.internal.chat.run_upkeep()
        store.messages.send_as_system(self.room.id, "This one waits for the platform.")

    def _receive(self, channel: Any, place: str, text: str, **fields: Any) -> None:
        """Receive a message and complete its letter."""
        event = f"{place}-{self._rng.random()}"
        fields = {"sender": "me", "files": [StoredFile("plan.pdf", None, 9_000)]} | fields
        result = IncomingEvent(event_id=event, message_id=event, place=place, text=text, **fields)
        for route in self.store.messages.receive(channel.id, result).routes:
            if route.wakes:
                (letter,) = self.store.mail.claim(f"session:{route.session_id}", owner="sample")
                self.store.mail.ack(letter)

    def _reply(self, channel: Any, place: Any, *texts: str) -> None:
        adapter = self.store.channels.open(channel.id)
        for text in texts:
            (message,) = self.store.messages.send(text, agent="ada", to=place.id)
            self.store.internal.chat.deliver(channel.id, adapter, owner="sample")
        self.store.messages.send("\N{EYES}", agent="ada", to=place.id, react=message.id)
        self.store.messages.send("Fixed in 4f1c2a9.", agent="ada", to=place.id, edit=message.id)
        self.store.messages.send(HOSTILE, agent="ada", to=place.id)
        self.store.internal.chat.deliver(channel.id, adapter, owner="sample")
