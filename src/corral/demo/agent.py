"""The scripted agent: it does what its prompt says, so that the demo and the tests need no model.

    python -m corral.demo.agent [--json | --acp | --interactive] [--model NAME] [--quota SECONDS]
                                [--session-id ID | --resume ID | --continue] [PROMPT …]

The prompt is in the arguments, in CORRAL_PROMPT or on standard input. Its lines, and the parts of a
line between semicolons, are commands when they start with one of these words. Any other text is
answered with "You said: …".

    say TEXT               print the text
    lines N                print N numbered lines
    write FILE TEXT        write a file
    ask QUESTION           ask, and wait for a line of input (ACP: for a permission)
    spend IN OUT [MODEL]   report the use of so many input and output tokens
    sleep SECONDS          wait
    await FILE             wait until the file exists
    hang                   wait until killed
    crash [CODE]           exit at once with this exit code (default 1)
    kill SIGNAL            send this signal to itself (KILL, TERM …)
    ignore SIGNAL          ignore this signal from now on
    fork SECONDS           leave a child process behind that lives this long
    fail N FILE            exit with 1 the first N times; FILE holds the count
    quota SECONDS          report that the quota is used up for this long, and exit with 1

With `--json` it prints a stream like Claude Code's. With `--acp` it speaks the Agent Client
Protocol. With `--interactive` it reads commands until `exit`, and asks questions with a menu. Its
conversations are stored below CORRAL_AGENT_HOME (default: the folder `scripted` of Corral's home).
"""

import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator

MODEL = "scripted-1"
MARK = "\N{HEAVY RIGHT-POINTING ANGLE QUOTATION MARK ORNAMENT}"
# Micro-dollars per million tokens: input, output.
PRICES = (3_000_000, 15_000_000)
COMMANDS = {"say", "lines", "write", "ask", "spend", "sleep", "await", "hang", "crash", "kill"}
COMMANDS |= {"ignore", "fork", "fail", "quota"}


def parse_commands(prompt: str) -> Iterator[tuple[str, str]]:
    """Yield the commands of a prompt as (verb, arguments); other text has the verb "answer".

    Skips the fence lines that Corral puts around quoted text (see `kernel/prompt.py`).
    """
    for line in prompt.splitlines():
        if line.startswith("[corral:"):
            continue
        for part in line.split(";"):
            verb, _, rest = part.strip().partition(" ")
            if verb in COMMANDS:
                yield verb, rest.strip()
            elif part.strip():
                yield "answer", part.strip()


class QuotaExceeded(Exception):
    """The quota is used up; the argument is the time of the reset, in seconds since 1970."""


class ScriptedOutput:
    """The output of the agent, here as plain text."""

    def say(self, text: str) -> None:
        print(text, flush=True)

    def tool(self, name: str, arguments: dict[str, object], result: str) -> None:
        self.say(f"[{name}] {result}")

    def ask(self, question: str) -> str | None:
        """Return the answer; None at the end of the input."""
        print(f"{question} ", end="", flush=True)
        line = sys.stdin.readline()
        return line.strip() if line else None

    def spend(self, tokens_in: int, tokens_out: int, model: str) -> None:
        self.say(f"[spent] {tokens_in} in, {tokens_out} out, {model}")


class MenuOutput(ScriptedOutput):
    """Output to a terminal, with questions as a menu like Claude Code's."""

    OPTIONS = ("Yes", "Yes, and do not ask again", "No")

    def ask(self, question: str) -> str | None:
        if not sys.stdin.isatty():
            return super().ask(question)
        import termios
        import tty

        before = termios.tcgetattr(0)
        tty.setcbreak(0)
        try:
            self.say(f" {question}\n Do you want to proceed?")
            chosen = self._choose()
        finally:
            termios.tcsetattr(0, termios.TCSADRAIN, before)
        return None if chosen == len(self.OPTIONS) - 1 else self.OPTIONS[chosen].lower()

    def _choose(self) -> int:
        """Return the option that the user selects by Enter, its number or Escape (the last one)."""
        marked, last = 0, len(self.OPTIONS) - 1
        self._draw(marked)
        while True:
            keys = os.read(0, 64)
            if not keys or keys == b"\x1b":
                return last
            for key in keys.replace(b"\x1b[A", b"k").replace(b"\x1b[B", b"j").decode("latin-1"):
                if key in "\r\n":
                    return marked
                if key.isdecimal() and 1 <= int(key) <= last + 1:
                    return int(key) - 1
                marked = max(0, min(last, marked + {"j": 1, "k": -1}.get(key, 0)))
            print(f"\x1b[{last + 3}A", end="")
            self._draw(marked)

    def _draw(self, marked: int) -> None:
        for at, option in enumerate(self.OPTIONS):
            print(f"\x1b[2K {MARK if at == marked else ' '} {at + 1}. {option}")
        print("\x1b[2K\n\x1b[2K Esc to cancel", flush=True)


class ScriptedAgent:
    """Carries out the commands of a prompt; `do_VERB` is the method of a command."""

    def __init__(self, output: ScriptedOutput, model: str = MODEL) -> None:
        self.output = output
        self.model = model

    def follow(self, prompt: str) -> None:
        for verb, rest in parse_commands(prompt):
            getattr(self, f"do_{verb}")(rest)

    def do_say(self, rest: str) -> None:
        self.output.say(rest)

    def do_answer(self, rest: str) -> None:
        self.output.say(f"You said: {rest}")

    def do_lines(self, rest: str) -> None:
        self.output.say("\n".join(f"line {number}" for number in range(1, int(rest or 1) + 1)))

    def do_write(self, rest: str) -> None:
        file, _, text = rest.partition(" ")
        with open(file, "w", encoding="utf-8") as opened:
            opened.write(f"{text}\n")
        self.output.tool("write", {"file": file, "text": text}, f"wrote {file}")

    def do_ask(self, rest: str) -> None:
        answer = self.output.ask(rest)
        self.output.say("No answer." if answer is None else f"Answered: {answer}")

    def do_spend(self, rest: str) -> None:
        tokens_in, tokens_out, *model = rest.split()
        self.output.spend(int(tokens_in), int(tokens_out), model[0] if model else self.model)

    def do_sleep(self, rest: str) -> None:
        time.sleep(float(rest))

    def do_await(self, rest: str) -> None:
        while not os.path.exists(rest):
            self.do_sleep("0.02")

    def do_hang(self, rest: str) -> None:
        while True:
            time.sleep(3_600)

    def do_crash(self, rest: str) -> None:
        os._exit(int(rest or 1))

    def do_kill(self, rest: str) -> None:
        os.kill(os.getpid(), parse_signal(rest or "KILL"))
        time.sleep(60)  # until the signal is delivered

    def do_ignore(self, rest: str) -> None:
        signal.signal(parse_signal(rest or "TERM"), signal.SIG_IGN)

    def do_fork(self, rest: str) -> None:
        sys.stdout.flush()
        if os.fork() == 0:
            time.sleep(float(rest))
            os._exit(0)

    def do_fail(self, rest: str) -> None:
        times, _, file = rest.partition(" ")
        try:
            with open(file, encoding="utf-8") as opened:
                failed = int(opened.read() or 0)
        except FileNotFoundError:
            failed = 0
        if failed < int(times):
            with open(file, "w", encoding="utf-8") as opened:
                opened.write(str(failed + 1))
            self.output.say(f"Failed {failed + 1} times.")
            self.do_crash("1")

    def do_quota(self, rest: str) -> None:
        from corral.kernel.clock import SECOND, SystemClock

        raise QuotaExceeded(SystemClock().now() // SECOND + int(rest))


def parse_signal(name: str) -> int:
    return signal.Signals[f"SIG{name.upper().removeprefix('SIG')}"]


# -- sessions -------------------------------------------------------------------------------------


def home() -> str:
    """Return the folder of the conversations; creates it.

    Not in the shared temporary folder, where another user could create it first.
    """
    from corral import config

    folder = os.environ.get("CORRAL_AGENT_HOME") or str(config.home() / "scripted")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return folder


class ScriptedSession:
    """A conversation on disk, as JSON lines."""

    def __init__(self, session: str) -> None:
        self.id = session
        self._file = os.path.join(home(), f"{os.path.basename(session)}.jsonl")

    @property
    def exists(self) -> bool:
        return os.path.exists(self._file)

    def turns(self) -> list[dict[str, str]]:
        if not self.exists:
            return []
        with open(self._file, encoding="utf-8") as opened:
            return [json.loads(line) for line in opened]

    def add(self, role: str, text: str) -> None:
        with open(self._file, "a", encoding="utf-8") as opened:
            opened.write(json.dumps({"role": role, "text": text}) + "\n")

    @staticmethod
    def latest() -> "ScriptedSession | None":
        files = [entry for entry in os.scandir(home()) if entry.name.endswith(".jsonl")]
        newest = max(files, key=lambda entry: entry.stat().st_mtime_ns, default=None)
        return ScriptedSession(newest.name.removesuffix(".jsonl")) if newest else None


# -- a stream like Claude Code's ------------------------------------------------------------------


class StreamOutput(ScriptedOutput):
    """Output as a JSON stream like Claude Code's."""

    def __init__(self, session: ScriptedSession, model: str) -> None:
        self.session = session
        self.model = model
        self.used: dict[str, list[int]] = {}

    def emit(self, kind: str, **rest: object) -> None:
        line = {"type": kind, **rest, "session_id": self.session.id, "uuid": str(uuid.uuid4())}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    def message(self, block: dict[str, object]) -> None:
        body = {"id": f"msg_{uuid.uuid4().hex}", "role": "assistant", "model": self.model}
        self.emit("assistant", message={**body, "content": [block]}, parent_tool_use_id=None)

    def say(self, text: str) -> None:
        self.session.add("assistant", text)
        self.message({"type": "text", "text": text})

    def tool(self, name: str, arguments: dict[str, object], result: str) -> None:
        call = f"call_{uuid.uuid4().hex[:20]}"
        self.message({"type": "tool_use", "id": call, "name": name, "input": arguments})
        block = {"type": "tool_result", "tool_use_id": call, "content": result, "is_error": False}
        self.emit("user", message={"role": "user", "content": [block]}, parent_tool_use_id=None)

    def ask(self, question: str) -> str | None:
        self.message({"type": "text", "text": question})
        line = sys.stdin.readline()
        return line.strip() if line else None

    def spend(self, tokens_in: int, tokens_out: int, model: str) -> None:
        entry = self.used.setdefault(model, [0, 0])
        entry[0] += tokens_in
        entry[1] += tokens_out

    def result(self, text: str, *, is_error: bool = False) -> None:
        models = {
            model: {
                "inputTokens": tokens_in,
                "outputTokens": tokens_out,
                "cacheReadInputTokens": 0,
                "cacheCreationInputTokens": 0,
                "costUSD": (tokens_in * PRICES[0] + tokens_out * PRICES[1]) / 1e12,
            }
            for model, (tokens_in, tokens_out) in self.used.items()
        }
        usage = {
            "input_tokens": sum(entry[0] for entry in self.used.values()),
            "output_tokens": sum(entry[1] for entry in self.used.values()),
        }
        cost = sum(float(entry["costUSD"]) for entry in models.values())
        self.emit(
            "result",
            subtype="success",
            is_error=is_error,
            result=text,
            total_cost_usd=cost,
            usage=usage,
            modelUsage=models,
            model_usage_since_last_result=models,
        )


def stream(prompt: str, session: ScriptedSession, model: str) -> int:
    output = StreamOutput(session, model)
    output.emit("system", subtype="init", cwd=os.getcwd(), model=model, tools=["write"])
    session.add("user", prompt)
    try:
        ScriptedAgent(output, model).follow(prompt)
    except QuotaExceeded as error:
        info = {"status": "rejected", "resetsAt": error.args[0], "rateLimitType": "five_hour"}
        output.emit("rate_limit_event", rate_limit_info=info)
        output.result("You've hit your limit.", is_error=True)
        return 1
    turns = session.turns()
    output.result(turns[-1]["text"] if turns[-1]["role"] == "assistant" else "Done.")
    return 0


# -- the command line -----------------------------------------------------------------------------


class UsageError(Exception):
    """The command line is invalid."""


def parse_options(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """Split the arguments into options and words.

    Without argparse, whose import takes longer than everything else here.
    """
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest and rest[0].startswith("--"):
        name, equals, value = rest.pop(0).partition("=")
        if name == "--":
            break
        if name in ("--json", "--acp", "--continue", "--interactive", "--help"):
            options[name] = "yes"
        elif name in ("--session-id", "--resume", "--model", "--quota"):
            if not equals:
                if not rest:
                    raise UsageError(f"{name} needs a value.")
                value = rest.pop(0)
            options[name] = value
        else:
            raise UsageError(f"unknown option {name}")
    return options, rest


def open_session(options: dict[str, str]) -> ScriptedSession:
    """Return the session to resume or continue, or a new one."""
    if "--resume" in options:
        session = ScriptedSession(options["--resume"])
        if not session.exists:
            raise UsageError(f"No conversation found with session ID: {session.id}")
        return session
    if "--continue" in options:
        latest = ScriptedSession.latest()
        if latest is None:
            raise UsageError("No conversation found to continue")
        return latest
    session = ScriptedSession(options.get("--session-id") or str(uuid.uuid4()))
    if session.exists:
        raise UsageError(f"Session ID {session.id} is already in use.")
    return session


def read_prompt(words: list[str]) -> str:
    if words:
        return " ".join(words)
    prompt = os.environ.get("CORRAL_PROMPT")
    if prompt is not None:
        return prompt
    return "" if sys.stdin.isatty() else sys.stdin.read()


def converse(prompt: str, model: str) -> int:
    """Follow the prompt, and then each line of input until its end or `exit`."""
    agent = ScriptedAgent(MenuOutput(), model)
    agent.follow(prompt)
    while True:
        print(f"{MARK} ", end="", flush=True)
        line = sys.stdin.readline()
        if not line or line.strip() in ("exit", "/exit"):
            return 0
        agent.follow(line)


def main(arguments: list[str]) -> int:
    try:
        options, words = parse_options(arguments)
        if "--help" in options:
            print((__doc__ or "").strip())
            return 0
        if "--acp" in options:
            from corral.demo.acp import serve

            return serve()
        model = options.get("--model", MODEL)
        session = open_session(options) if "--json" in options else None
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if "--interactive" in options:
        return converse(" ".join(words), model)
    prompt = read_prompt(words)
    if "--quota" in options:
        prompt = f"quota {options['--quota']}"
    if session:
        return stream(prompt, session, model)
    try:
        ScriptedAgent(ScriptedOutput(), model).follow(prompt)
    except QuotaExceeded as error:
        reset = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(error.args[0]))
        print(f"Usage limit reached; try again at {reset}.", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # exit on an interrupt without a traceback
    sys.exit(main(sys.argv[1:]))
