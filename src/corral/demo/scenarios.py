"""What `make demo` shows: processes are killed with SIGKILL, and no work is lost or done twice."""

import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from corral.api import Corral
from corral.demo.harness import DemoFailed, Harness


def run_demo() -> int:
    """Run all scenarios in a temporary home; returns 0 when every claim holds, or else 1."""
    demo = Harness()
    began = time.monotonic()
    try:
        demo.say("Corral in four short stories, with real processes and `kill -9`. No model is")
        demo.say(f"called: the agents follow scripts. Everything is in {demo.home}.")
        crash_safe_run(demo)
        race_id = race_with_checks(demo)
        team_on_a_task_graph(demo)
        chat_answered_once(demo)
        demo.title("After all that")
        findings = demo.corral("db", "verify")
        demo.prove(
            f"{demo.killed} processes were killed, and `corral db verify` finds no problems.",
            all(finding["state"] == "ok" for finding in findings),
        )
    except DemoFailed as error:
        demo.say(f"The demo failed: {error}")
        return 1
    finally:
        demo.close()
    demo.title(f"Done in {time.monotonic() - began:.0f} s. Look at it yourself:")
    _print_next_steps(demo, race_id)
    return 0


def _print_next_steps(demo: Harness, race_id: str) -> None:
    corral = shutil.which("corral") or ".venv/bin/corral"
    commands = (
        (f"export CORRAL_HOME={demo.home}", "use the demo's data"),
        (f"{corral} up", "start the dashboard and print its link"),
        (f"{corral} ps -a", "the runs and how they ended"),
        (f"{corral} race show {race_id}", "the race, its attempts and its winners"),
        (f"{corral} task graph --project {demo.project}", "the team's tasks"),
        (f"{corral} message list", "the chat"),
        (f"{corral} events", "every change, in order"),
        (f"{corral} down && rm -r {demo.home}", "stop the dashboard and delete everything"),
    )
    width = max(len(command) for command, _ in commands)
    for command, purpose in commands:
        demo.say(f"{command:{width}}  # {purpose}")


# -- 1. a run ------------------------------------------------------------------------------------


def crash_safe_run(demo: Harness) -> None:
    """Kill the terminal, the supervisor and the agent of a run, and resume it."""
    demo.title("1. A run survives crashes")
    prompt = "say I read the code; spend 1000 200; sleep 600"
    terminal = demo.start("run", "--agent", "scripted", "--no-pty", prompt)
    demo.wait_for(lambda store: store.runs.list(state="running").items)
    (run,) = demo.corral("ps", "--state", "running")
    demo.wait_for(lambda store: len(store.sessions.turns(run["session_id"]).items) > 1)
    demo.say(f"`corral run` started an agent as process {run['pid']}.")
    demo.say("Kill the terminal that started it.")
    demo.kill(terminal)
    (current,) = demo.corral("ps")
    demo.prove("The agent keeps running.", current["state"] == "running")
    demo.say("Kill its supervisor, and run `corral recover`.")
    demo.kill_processes(run["supervisor_pid"])
    demo.corral("recover")
    (current,) = demo.corral("ps")
    demo.prove(
        "A new supervisor watches the same process.",
        current["pid"] == run["pid"] and current["supervisor_pid"] != run["supervisor_pid"],
    )
    demo.say("Kill the supervisor and the agent.")
    demo.kill_processes(current["supervisor_pid"], current["pid"])
    demo.corral("recover")
    crashed = demo.corral("show", run["id"])
    demo.prove(
        "The run is recorded as crashed by signal 9; no exit code is invented.",
        (crashed["state"], crashed["signal"], crashed["exit_code"]) == ("crashed", 9, None),
    )
    demo.say("Run `corral resume`.")
    rest = "say Where was I? Ah; write done.txt yes; spend 300 100; say done"
    demo.corral("resume", run["id"], rest, "--detach")
    demo.wait_for(lambda store: store.runs.list(state="completed").items)
    (completed,) = demo.corral("ps", "-a", "--state", "completed")
    demo.prove(
        "The agent continues the same conversation and completes its work.",
        completed["session_id"] == run["session_id"] and (demo.project / "done.txt").exists(),
    )


# -- 2. a race -----------------------------------------------------------------------------------

CHECK = 'test "$(sh greet.sh)" = "hello"'
PROMPT = "say I shall write greet.sh; spend 900 150; await {}"
VARIATIONS = (
    "write greet.sh echo hello",
    "write greet.sh echo helo",
    "write greet.sh printf 'hello'; write notes.txt one; write more.txt two",
    "crash 3",
)
OUTCOMES = {
    ("completed", True): "passed the check",
    ("completed", False): "failed the check",
    ("failed", None): "its agent crashed",
}


def race_with_checks(demo: Harness) -> str:
    """Race four attempts, kill the driver, and continue from the winner in a second round.

    Returns the id of the race.
    """
    demo.title("2. A race with checks")
    repository = _create_repository(demo)
    judge = f"{sys.executable} -P -m corral.demo.judge"
    demo.corral("agent", "create", "judge", "--command", judge)
    variations = [word for text in VARIATIONS for word in ("--variation", text)]
    go = demo.home / "go"
    driver = demo.start(
        *("race", "start", PROMPT.format(go), "--agents", "scripted", *variations),
        *("--check", CHECK, "--judge", "judge", "--project", str(repository), "--wait"),
    )
    demo.wait_for(lambda store: len(store.runs.list(state="running").items) == len(VARIATIONS))
    demo.say("Four agents try the same task at the same time, each in its own git worktree.")
    demo.say("The check: greet.sh must print hello.")
    demo.say("Kill the process that drives the race, and run `corral race wait`.")
    demo.kill(driver)
    go.touch()
    (started,) = demo.corral("race", "list")
    race = demo.corral("race", "wait", started["id"])
    (round,) = race["rounds"]
    results = [(attempt["state"], attempt["passed"]) for attempt in round["attempts"]]
    demo.prove(
        "Another driver continues, and every attempt ends with its own result:",
        results
        == [("completed", True), ("completed", False), ("completed", True), ("failed", None)],
    )
    for attempt, result in zip(round["attempts"], results, strict=True):
        rank = f", rank {attempt['rank']}" if attempt["rank"] else ""
        demo.say(f"    attempt {attempt['number']}: {OUTCOMES[result]}{rank}")
    demo.prove(
        "A judge that does not know the authors ranked the two that passed, twice.",
        round["attempts"][0]["rank"] == 1
        and [verdict["state"] for verdict in round["verdicts"]] == ["given", "given"],
    )
    demo.say("Select the winner, and start a second round.")
    selected = demo.corral("race", "select", race["id"], "--reason", "short and correct")
    winner_commit = selected["rounds"][0]["winner_commit"]
    variation = "write greet.sh echo hello; write test.sh sh greet.sh"
    second = demo.corral(
        *("race", "next", race["id"], "say Now a test", "--agents", "scripted:1"),
        *("--variation", variation, "--wait"),
    )
    demo.prove(
        "The second round starts from the winner's commit.",
        second["rounds"][1]["base_commit"] == winner_commit
        and second["rounds"][1]["state"] == "selecting",
    )
    demo.corral("race", "select", race["id"])
    folder = demo.home / "race"
    manifest = demo.corral("race", "export", race["id"], str(folder))
    demo.prove(
        f"`corral race export` writes both winners and all logs: {len(manifest['entries'])} files.",
        (folder / "round-2-winner" / "test.sh").exists()
        and (folder / "logs" / "round-1-attempt-4.log").exists(),
    )
    return str(race["id"])


def _create_repository(demo: Harness) -> Path:
    """Create a git repository with one commit."""
    folder = demo.home / "raced"
    folder.mkdir()
    (folder / "README").write_text("Wanted: a script greet.sh that prints hello.\n")
    identity = ("-c", "user.name=demo", "-c", "user.email=demo@localhost")
    for command in (("init", "-q"), ("add", "README"), ("commit", "-qm", "Describe the task")):
        done = subprocess.run(
            ["git", *identity, *command], cwd=folder, capture_output=True, check=False
        )
        if done.returncode != 0:
            raise DemoFailed(f"git {command[0]}: {done.stderr.decode(errors='replace').strip()}")
    return folder


# -- 3. a team -----------------------------------------------------------------------------------

# The worker sleeps for as many seconds as the description says.
GRAPH = """
tasks:
  - {key: publish, title: Publish it, role: worker, depends_on: [build, docs]}
  - {key: build, title: Build it, role: worker, description: "600", priority: 1}
  - {key: docs, title: Describe it, role: worker}
"""


def team_on_a_task_graph(demo: Harness) -> None:
    """Let two workers do a task graph, and kill one of them."""
    demo.title("3. A team works on a task graph")
    program = f"{sys.executable} -P -m corral.demo.worker"
    demo.corral("agent", "create", "lead", "--provider", "scripted")
    for name in ("ann", "bob"):
        demo.corral("agent", "create", name, "--role", "worker", "--command", program)
    (demo.project / "graph.yaml").write_text(GRAPH)
    declared = demo.corral("task", "declare", "graph.yaml", "--lead", "agent:lead")
    demo.say("Declare three tasks: publish depends on build and docs.")
    demo.prove(
        "build and docs are ready, publish waits for them.",
        {task["key"]: task["state"] for task in declared}
        == {"publish": "pending", "build": "ready", "docs": "ready"},
    )
    ann = demo.corral("run", "--detach", "--agent", "ann", "work")
    demo.wait_for(lambda store: store.locks.list().items)
    locks = demo.corral("lock", "list")
    demo.prove(
        "The agent ann claims build and locks its file.",
        [lock["owner"] for lock in locks] == ["agent:ann"],
    )
    demo.say("Kill ann and its supervisor.")
    demo.corral("task", "edit", "build", "--description", "0")
    demo.kill_processes(ann["supervisor_pid"], ann["pid"])
    demo.corral("recover")
    build = demo.corral("task", "show", "build")
    demo.prove(
        "build is not done: it is ready again, and its file is unlocked.",
        build["state"] == "ready" and not demo.corral("lock", "list"),
    )
    demo.say("Start the agent bob.")
    demo.corral("run", "--detach", "--agent", "bob", "work")
    for key in ("build", "docs", "publish"):
        demo.wait_for(partial(_is_submitted, key))
        demo.corral("task", "accept", key, "--agent", "lead")
    tasks = demo.corral("task", "list")
    demo.prove(
        "bob submits all three tasks with evidence, the lead accepts them: all are done.",
        {task["state"] for task in tasks} == {"done"},
    )


def _is_submitted(key: str, store: Corral) -> bool:
    return store.tasks.get(key).state == "submitted"


# -- 4. a chat -----------------------------------------------------------------------------------

# The first start of the agent only creates a file and hangs; later starts answer.
HANG_ONCE = "test -e begun || { touch begun; sleep 600; }"
CLERK = f"""sh -c '{HANG_ONCE}; tail -n 1 | sed "s/^Now: //; s/^/You asked: /"'"""


def chat_answered_once(demo: Harness) -> None:
    """Kill both sides of a chat before the answer, and ask again."""
    demo.title("4. A chat message is answered exactly once")
    demo.corral("agent", "create", "clerk", "--command", CLERK)
    demo.corral("setting", "set", "mail.backoff_ms", "[200]")
    chat = demo.start("chat", "--agent", "clerk", "--once", "What time is it?")
    demo.wait_for(lambda _: (demo.project / "begun").exists())
    demo.say('Ask "What time is it?", and kill the chat, the agent and its supervisor at once.')
    demo.kill(chat)
    (run,) = demo.corral("ps")
    demo.kill_processes(run["supervisor_pid"], run["pid"])
    demo.corral("recover")
    demo.say('Open another chat and ask "And the date?". It shows:')
    again = demo.corral("chat", "--agent", "clerk", "--once", "And the date?")
    for answer in again["answers"]:
        demo.say(f"    clerk: {answer}")
    demo.prove(
        "The first question is answered too, once.",
        again["answers"] == ["You asked: What time is it?", "You asked: And the date?"],
    )
    messages = demo.corral("message", "list")
    first = demo.corral("mail", "show", messages[-1]["routes"][0]["letter_id"])
    demo.prove(
        "Two questions, two answers; the first question took two deliveries.",
        sorted((message["direction"], message["state"]) for message in messages)
        == [("in", "routed"), ("in", "routed"), ("out", "sent"), ("out", "sent")]
        and (first["state"], first["attempts"]) == ("done", 2),
    )
