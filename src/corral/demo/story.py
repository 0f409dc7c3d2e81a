"""What `make demo` shows: real processes are killed, and nothing is lost or doubled."""

import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from corral.api import Corral
from corral.demo.stage import Stage, Unexpected


def tell() -> int:
    """Tell the whole story in a temporary home; the exit code says whether all of it was true."""
    stage = Stage()
    began = time.monotonic()
    try:
        stage.tell(f"A home of its own for this story: {stage.home}")
        projects(stage)
        mail_survives_a_kill(stage)
        timer_survives_a_kill(stage)
        run_survives_kills(stage)
        daemon_dies_alone(stage)
        team_loses_a_worker(stage)
        race_loses_its_driver(stage)
        chat_is_answered_all_the_same(stage)
        the_record(stage)
    except Unexpected as error:
        stage.tell(f"The story broke off: {error}")
        return 1
    finally:
        stage.clear()
    stage.chapter(
        f"That was all true, in {time.monotonic() - began:.0f} s. To look at it yourself:"
    )
    corral = shutil.which("corral") or ".venv/bin/corral"
    lines = (
        (f"export CORRAL_HOME={stage.home}", "the home that this story was played in"),
        (f"{corral} up", "the dashboard: prints the link to open (down ends it)"),
        (f"{corral} events", "everything that happened, in order"),
        (f"{corral} ps -a", "the runs, and how they ended"),
        (f"{corral} task graph --project {stage.project}", "the team's work"),
        (f"{corral} race list", "the race; race show tells all of it"),
        (f"{corral} message list", "what was said in the chat, both ways"),
        (f"{corral} stats", "what they cost"),
        (f"rm -r {stage.home}", "when you have seen enough"),
    )
    width = max(len(typed) for typed, _ in lines)
    for typed, why in lines:
        stage.tell(f"{typed:{width}}  # {why}")
    return 0


def projects(stage: Stage) -> None:
    stage.chapter("1. A project")
    first = stage.corral("project", "register", ".", "--command", "claude", "--prompt", "say hi")
    stage.tell(f"{first['dir']} is {first['id']}.")
    again = stage.corral("project", "register", f"{stage.project}/")
    stage.prove(
        "registering it again, written differently, gives the same project",
        again["id"] == first["id"] and again["prompt"] == "say hi",
    )


def mail_survives_a_kill(stage: Stage) -> None:
    stage.chapter("2. A letter whose reader is killed with kill -9")
    letter = stage.corral(
        "mail", "put", "agent:ada", "please look at the build", "--key", "build-7"
    )
    again = stage.corral("mail", "put", "agent:ada", "please look at the build", "--key", "build-7")
    stage.prove("sent twice with one key, it is one letter", again["id"] == letter["id"])
    # The next reader must come while the lease lasts, however slow the machine is.
    lease = f"{3 + 5 * stage.slowest:.0f}s"
    reader = stage.start(
        "mail", "claim", "agent:ada", "--owner", "first", "--lease", lease, "--wait"
    )
    assert reader.stdout is not None
    reader.stdout.readline()
    stage.kill(reader)
    stage.tell("The first reader took it and was killed before it could answer.")
    nobody = stage.corral("mail", "claim", "agent:ada", "--owner", "second")
    stage.prove("while its lease lasts, nobody else gets it", nobody == [])
    (taken,) = stage.corral(
        "mail", "claim", "agent:ada", "--owner", "second", "--wait", "--timeout", "2m"
    )
    stage.prove(f"then it comes again, as attempt {taken['attempts']}", taken["attempts"] == 2)
    late = stage.start("mail", "ack", letter["id"], "--fence", "1")
    stage.prove("the killed reader's claim is void: its late answer is refused", late.wait() == 4)
    done = stage.corral("mail", "ack", taken["id"], "--fence", str(taken["fence"]))
    stage.prove("the second reader's answer counts", done["state"] == "done")


def timer_survives_a_kill(stage: Stage) -> None:
    stage.chapter("3. A timer whose scheduler is killed with kill -9")
    timer = stage.corral("timer", "set", "agent:ada", "stand-up in five", "--in", "5s")
    scheduler = stage.start("schedule", "fire", "--watch")
    stage.wait(1, "A scheduler waits for its moment")
    stage.kill(scheduler)
    stage.wait(4.5, "It was killed. Meanwhile the moment passes")
    successors = [stage.start("schedule", "fire", "--watch") for _ in range(2)]
    (fired,) = stage.corral(
        "mail", "claim", "agent:ada", "--owner", "ada", "--wait", "--timeout", "2m"
    )
    stage.tell("Two new schedulers started at once.")
    stage.prove("the timer fired, late but not lost", fired["body"] == "stand-up in five")
    for successor in successors:
        stage.kill(successor)
    put = [
        event
        for event in stage.corral("events")
        if event["subject"] == fired["id"] and event["verb"] == "put"
    ]
    stage.prove("and it fired once, though two were ready to", len(put) == 1)
    (shown,) = stage.corral("timer", "list", "--all")
    stage.prove(
        "the timer itself is finished", (shown["id"], shown["state"]) == (timer["id"], "finished")
    )


def run_survives_kills(stage: Stage) -> None:
    stage.chapter("4. A run whose terminal, keeper and agent are killed with kill -9")
    terminal = stage.start(
        "run", "--agent", "scripted", "--no-pty", "say I read the code; spend 1000 200; sleep 600"
    )
    stage.until(lambda store: store.runs.list(state="running").items)
    (run,) = stage.corral("ps", "--state", "running")
    stage.until(lambda store: len(store.sessions.turns(run["session_id"]).items) > 1)
    stage.tell(f"{run['id']} works, as process {run['pid']}.")
    stage.kill(terminal)
    (still,) = stage.corral("ps")
    stage.prove("the command that started it is dead, and it runs on", still["state"] == "running")
    stage.kill_processes(run["keeper_pid"])
    (found,) = stage.corral("recover")
    (kept,) = stage.corral("ps")
    stage.prove(
        f"its keeper is killed: {found['reason']}, and it is the same process",
        kept["pid"] == run["pid"] and kept["keeper_pid"] != run["keeper_pid"],
    )
    stage.kill_processes(kept["keeper_pid"], kept["pid"])
    stage.corral("recover")
    dead = stage.corral("show", run["id"])
    stage.prove(
        "keeper and agent are killed: it is crashed, by signal 9, and no exit code is made up",
        (dead["state"], dead["signal"], dead["exit_code"]) == ("crashed", 9, None),
    )
    words = "say Where was I? Ah; write done.txt yes; spend 300 100; say done"
    stage.corral("resume", run["id"], words, "--detach")
    stage.until(lambda store: store.runs.list(state="completed").items)
    (done,) = stage.corral("ps", "-a", "--state", "completed")
    turns = stage.corral("session", "turns", run["session_id"])
    for turn in turns:
        said = turn["content"][:60] or turn["tool_name"] or ""
        stage.tell(f"{turn['number']:>3} {turn['role']:<10} {said}")
    stage.prove(
        "resumed, it goes on in the same conversation and finishes",
        done["session_id"] == run["session_id"] and (stage.project / "done.txt").exists(),
    )


def daemon_dies_alone(stage: Stage) -> None:
    stage.chapter("5. A daemon with a dashboard, killed with kill -9")
    up = stage.corral("up", "--port", "0")
    stage.tell(f"The dashboard, while this lasts: {up['link']}")
    stage.prove("its link opens the overview", stage.opens(up["link"]))
    run = stage.corral("run", "--detach", "--agent", "scripted", "sleep 600")
    stage.kill_processes(up["daemon"]["pid"])
    (still,) = stage.corral("ps")
    stage.prove("it is killed, and its run goes on", still["pid"] == run["pid"])
    stage.kill_processes(run["keeper_pid"], run["pid"])
    again = stage.corral("up", "--port", "0")
    (found,) = again["found"]
    stage.prove(
        f"its next life finds what died meanwhile: {found['was']}, now {found['state']}",
        found["run_id"] == run["id"],
    )
    stage.corral("down")


GRAPH = """
tasks:
  - {key: publish, title: Publish it, role: worker, depends_on: [build, docs]}
  - {key: build, title: Build it, role: worker, description: "600", priority: 1}
  - {key: docs, title: Describe it, role: worker}
"""


def team_loses_a_worker(stage: Stage) -> None:
    stage.chapter("6. A team on a graph of tasks, one of whose workers is killed with kill -9")
    program = f"{sys.executable} -P -m corral.demo.worker"
    stage.corral("agent", "create", "lead", "--provider", "scripted")
    for name in ("ann", "bob"):
        stage.corral("agent", "create", name, "--role", "worker", "--command", program)
    (stage.project / "graph.yaml").write_text(GRAPH)
    declared = stage.corral("task", "declare", "graph.yaml", "--lead", "agent:lead")
    stage.prove(
        "declared in any order: build and docs are ready, publish waits for both",
        {task["key"]: task["state"] for task in declared}
        == {"publish": "pending", "build": "ready", "docs": "ready"},
    )
    ann = stage.corral("run", "--detach", "--agent", "ann", "work")
    stage.until(lambda store: store.locks.list().items)
    held = stage.corral("lock", "list")
    stage.prove(
        "ann does build, and has locked its file", [lock["owner"] for lock in held] == ["agent:ann"]
    )
    stage.corral("task", "edit", "build", "--description", "0")
    stage.kill_processes(ann["keeper_pid"], ann["pid"])
    stage.corral("recover")
    build = stage.corral("task", "show", "build")
    stage.prove(
        "ann is killed: build is not done but ready again, and its file is free",
        build["state"] == "ready" and not stage.corral("lock", "list"),
    )
    stage.corral("run", "--detach", "--agent", "bob", "work")
    for key in ("build", "docs", "publish"):
        stage.until(partial(_is_submitted, key))
        stage.corral("task", "accept", key, "--agent", "lead")
    done = stage.corral("task", "list")
    stage.prove(
        "bob submits all three with evidence, the lead accepts them: the board is done",
        {task["state"] for task in done} == {"done"},
    )


def _is_submitted(key: str, store: Corral) -> bool:
    return store.tasks.get(key).state == "submitted"


GREET = 'test "$(sh greet.sh)" = "hello"'
TASK = "say I shall write greet.sh; spend 900 150; await {}"
WAYS = (
    "write greet.sh echo hello",
    "write greet.sh echo helo",
    "write greet.sh printf 'hello'; write notes.txt one; write more.txt two",
    "crash 3",
)


def race_loses_its_driver(stage: Stage) -> None:
    stage.chapter("7. A race of four attempts, whose driver is killed with kill -9")
    repository = _repository(stage)
    judge = f"{sys.executable} -P -m corral.demo.judge"
    stage.corral("agent", "create", "judge", "--command", judge)
    ways = [word for way in WAYS for word in ("--variation", way)]
    go = stage.home / "go"
    driver = stage.start(
        *("race", "start", TASK.format(go), "--agents", "scripted", *ways, "--check", GREET),
        *("--judge", "judge", "--project", str(repository), "--wait"),
    )
    stage.until(lambda store: len(store.runs.list(state="running").items) == len(WAYS))
    stage.kill(driver)
    go.touch()
    (started,) = stage.corral("race", "list")
    race = stage.corral("race", "wait", started["id"])
    (round,) = race["rounds"]
    for attempt in round["attempts"]:
        passed = {True: "passes", False: "does not pass", None: "-"}[attempt["passed"]]
        rank = f", rank {attempt['rank']}" if attempt["rank"] else ""
        stage.tell(f"{attempt['number']} {attempt['state']:<9}  {passed}{rank}")
    states = [(attempt["state"], attempt["passed"]) for attempt in round["attempts"]]
    stage.prove(
        "another goes on with it: two pass their check, one does not, one has failed",
        states
        == [("completed", True), ("completed", False), ("completed", True), ("failed", None)],
    )
    stage.prove(
        "the judge, who was shown both twice and in both orders, likes the first one best",
        round["attempts"][0]["rank"] == 1
        and [verdict["state"] for verdict in round["verdicts"]] == ["given", "given"],
    )
    chosen = stage.corral("race", "select", race["id"], "--reason", "short and right")
    commit = chosen["rounds"][0]["winner_commit"]
    better = "write greet.sh echo hello; write test.sh sh greet.sh"
    second = stage.corral(
        *("race", "next", race["id"], "say Now a test", "--agents", "scripted:1"),
        *("--variation", better, "--wait"),
    )
    stage.prove(
        "the second round begins with the winner's commit",
        second["rounds"][1]["base_commit"] == commit
        and second["rounds"][1]["state"] == "selecting",
    )
    stage.corral("race", "select", race["id"])
    out = stage.home / "race"
    written = stage.corral("race", "export", race["id"], str(out))
    stage.prove(
        f"both winners and all logs are in {out}: {len(written['entries'])} files, with hashes",
        (out / "round-2-winner" / "test.sh").exists()
        and (out / "logs" / "round-1-attempt-4.log").exists(),
    )


def _repository(stage: Stage) -> Path:
    """A git repository of its own, with one commit."""
    folder = stage.home / "raced"
    folder.mkdir()
    (folder / "README").write_text("A greeting is wanted: greet.sh says hello.\n")
    who = ("-c", "user.name=demo", "-c", "user.email=demo@localhost")
    for words in (("init", "-q"), ("add", "README"), ("commit", "-qm", "what is wanted")):
        done = subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, check=False)
        if done.returncode != 0:
            raise Unexpected(f"git {words[0]}: {done.stderr.decode(errors='replace').strip()}")
    return folder


# The first time it only begins; whoever comes next finds that, and answers.
BEGIN = "test -e begun || { touch begun; sleep 600; }"
CLERK = f"""sh -c '{BEGIN}; tail -n 1 | sed "s/^Now: //; s/^/You asked: /"'"""


def chat_is_answered_all_the_same(stage: Stage) -> None:
    stage.chapter("8. A question in a chat, whose chat, keeper and agent are killed with kill -9")
    stage.corral("agent", "create", "clerk", "--command", CLERK)
    stage.corral("setting", "set", "mail.backoff_ms", "[200]")
    chat = stage.start("chat", "--agent", "clerk", "--once", "What time is it?")
    stage.until(lambda _: (stage.project / "begun").exists())
    stage.kill(chat)
    (run,) = stage.corral("ps")
    stage.kill_processes(run["keeper_pid"], run["pid"])
    stage.corral("recover")
    stage.tell("Whoever asked, and whoever was about to answer, are dead.")
    again = stage.corral("chat", "--agent", "clerk", "--once", "And the date?")
    for line in again["answers"]:
        stage.tell(f"clerk: {line}")
    stage.prove(
        "the next chat shows the answer to what the dead one asked, once, and then its own",
        again["answers"] == ["You asked: What time is it?", "You asked: And the date?"],
    )
    said = stage.corral("message", "list")
    stage.prove(
        "both questions were heard and both answers sent, and nothing else was said",
        sorted((each["direction"], each["state"]) for each in said)
        == [("in", "heard"), ("in", "heard"), ("out", "sent"), ("out", "sent")],
    )
    first = stage.corral("mail", "show", said[-1]["routes"][0]["letter_id"])
    stage.prove(
        f"the first one's letter was worked on {first['attempts']} times and is done",
        (first["state"], first["attempts"]) == ("done", 2),
    )


def the_record(stage: Stage) -> None:
    stage.chapter("9. The record")
    events = stage.corral("events")
    for event in events:
        stage.tell(f"{event['id']:<8} {event['kind']:<12} {event['verb']:<9} {event['subject']}")
    sound = stage.corral("db", "verify")
    stage.prove(
        "after all that killing the store is sound",
        all(finding["state"] == "ok" for finding in sound),
    )
