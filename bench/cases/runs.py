"""The cost of a supervised run: output, start-up, and the supervisor's memory."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import corral
from bench.harness import Bar, Bench, Rates, Rival, Row, Spread
from corral.adapters.processes import process
from corral.adapters.supervisor_process import StartingSupervisor
from corral.api import Corral
from corral.domain.runs.model import Run

TITLE = "Runs"
ABOUT = """
    A child writes 200 MB in large pieces, then 1,000,000 single lines, and measures its own
    time: directly into a file, and in a detached run; on a terminal of `script -q`, and in a
    detached run with a terminal. After every run each byte is compared. Start time is from
    `corral run -d` to the execution of the child. The memory of a supervisor is measured when
    it is idle. At the end 200 runs are active at once.
"""
CORRAL = [sys.executable, "-m", "corral"]
LINE = b"0123456789 " * 9 + b"\n"
PIECE = LINE * 655  # about 64 KB
MEGABYTES = 200
LINES = 1_000_000
AT_ONCE = 200
SETTLE = 30.0

CHILD = f"""
import os, sys, time
def write_all(data):
    while data:
        data = data[os.write(1, data):]
piece = {LINE!r} * 655
start = time.perf_counter()
if sys.argv[1] == "bytes":
    for _ in range(int(sys.argv[2])):
        write_all(piece)
else:
    line = {LINE!r}
    for _ in range(int(sys.argv[2])):
        write_all(line)
seconds = time.perf_counter() - start
with open(sys.argv[3] + ".part", "w") as file:
    file.write(repr(seconds))
os.rename(sys.argv[3] + ".part", sys.argv[3])
"""


class RunHome:
    """A home for runs, and a child that writes for a while."""

    def __init__(self, bench: Bench) -> None:
        self.folder = bench.new_file().parent
        self.url = f"sqlite:///{self.folder}/store.db"
        self.env = os.environ | {
            "CORRAL_HOME": str(self.folder / "home"),
            "CORRAL_STORE": self.url,
            "PYTHONDONTWRITEBYTECODE": "",
        }
        os.environ["CORRAL_HOME"] = self.env["CORRAL_HOME"]
        (self.folder / "child.py").write_text(CHILD)
        pieces = MEGABYTES * 1_000_000 // len(PIECE)
        self.work = {
            f"{bench.pick(MEGABYTES, 20)} MB": ("bytes", bench.pick(pieces, pieces // 10)),
            f"{bench.pick(LINES, LINES // 10):,} lines": ("lines", bench.pick(LINES, LINES // 10)),
        }
        corral.open(self.url).close()

    def child(self, how: str, count: int) -> list[str]:
        seconds_file = self.folder / "seconds"
        seconds_file.unlink(missing_ok=True)
        file = str(self.folder / "child.py")
        return [sys.executable, "-S", "-E", file, how, str(count), str(seconds_file)]

    def seconds(self) -> float:
        return float((self.folder / "seconds").read_text())

    def measure_output(self, run: Callable[[list[str], bytes], None]) -> Rates:
        """Return the child's speed with each kind of output."""
        rates = {}
        for name, (how, count) in self.work.items():
            run(self.child(how, count), (PIECE if how == "bytes" else LINE) * count)
            rates[name] = 1 / self.seconds()
        return rates

    def run_into_file(self, command: list[str], expected: bytes) -> None:
        output = self.folder / "output"
        with output.open("wb") as file:
            subprocess.run(command, stdout=file, stdin=subprocess.DEVNULL, check=True)
        assert output.stat().st_size == len(expected)
        output.unlink()

    def run_in_script(self, command: list[str], expected: bytes) -> None:
        output = self.folder / "typescript"
        arguments = ["script", "-q", "-e", "-c", " ".join(command), str(output)]
        subprocess.run(arguments, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, check=True)
        assert output.stat().st_size >= len(expected)
        output.unlink()

    def run(self, command: list[str], expected: bytes, *, pty: bool) -> None:
        option = "--pty" if pty else "--no-pty"
        result = subprocess.run(
            [*CORRAL, "run", "-d", option, "--json", "--", *command],
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            check=True,
        )
        with corral.open(self.url) as store:
            run = store.runs.wait(json.loads(result.stdout)["id"])
            assert run.exit_code == 0, run
            recorded = expected.replace(b"\n", b"\r\n") if pty else expected
            assert run.output_bytes == len(recorded), (run.output_bytes, len(recorded))
            _wait_for_exit(run.supervisor_pid)
            _compare(store, run, recorded)
            store.runs.delete(run.id)


def measure(bench: Bench) -> list[Row]:
    home = RunHome(bench)
    return [
        *_output(bench, home),
        *_start(bench, home),
        *_memory(home),
        *_many_runs(bench, home),
    ]


def _output(bench: Bench, home: RunHome) -> list[Row]:
    rounds = bench.pick(3, 1)
    pipe = bench.compare(
        Rival("a file", partial(home.measure_output, home.run_into_file)),
        [Rival("pipe", partial(home.measure_output, partial(home.run, pty=False)))],
        rounds=rounds,
    )
    terminal = bench.compare(
        Rival("script -q", partial(home.measure_output, home.run_in_script)),
        [Rival("pty", partial(home.measure_output, partial(home.run, pty=True)))],
        rounds=rounds,
    )
    return [
        *(
            Row(
                f"{name} in a detached run: the child's time over that into a file",
                pipe.speed_of_base_over("pipe", name),
                Bar("<=", 1.2),
            )
            for name in home.work
        ),
        *(
            Row(
                f"{name} in a run with a terminal",
                terminal.speed_of("pty", name),
                Bar(">=", 0.7),
                over="script -q",
            )
            for name in home.work
        ),
    ]


def _compare(store: Corral, run: Run, expected: bytes) -> None:
    """Compare the sealed output with what was written, byte by byte."""
    text = store.outputs.open(run.id)
    assert text.size == len(expected), (text.size, len(expected))
    offset = 0
    while data := text.bytes(offset, 1 << 22):
        assert bytes(data) == expected[offset : offset + len(data)], (
            f"difference after byte {offset}"
        )
        offset += len(data)
    assert offset == len(expected)


def _wait_for_exit(pid: int | None) -> None:
    deadline = time.monotonic() + SETTLE
    while pid is not None and process.identify(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.02)


def _start(bench: Bench, home: RunHome) -> list[Row]:
    """Return the time from the command to the child's first action, which writes the time."""
    stamp = home.folder / "stamp"
    command = ["sh", "-c", f"date +%s%N >'{stamp}.part'; mv '{stamp}.part' '{stamp}'"]

    def start() -> Rates:
        stamp.unlink(missing_ok=True)
        start_ns = time.time_ns()
        subprocess.run(
            [*CORRAL, "run", "-d", "--", *command],
            env=home.env,
            cwd=home.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        deadline = time.monotonic() + SETTLE
        while not stamp.exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        elapsed = (int(stamp.read_text()) - start_ns) / 1e9
        with corral.open(home.url) as store:
            (run,) = store.runs.list(limit=1).items
            store.runs.wait(run.id)
        _wait_for_exit(run.supervisor_pid)
        return {"start": 1 / elapsed}

    def nothing() -> Rates:
        start_time = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], env=home.env, check=True)
        return {"start": 1 / (time.perf_counter() - start_time)}

    result = bench.compare(
        Rival("python -c pass", nothing),
        [Rival("corral run -d", start)],
        rounds=bench.pick(20, 5),
    )
    return [
        Row(
            "corral run -d to the child executing, over python -c pass",
            result.speed_of_base_over("corral run -d", "start"),
            Bar("<=", 10),
        )
    ]


def _memory(home: RunHome) -> list[Row]:
    """Return the memory of an idle supervisor shortly after its start."""
    values: dict[str, list[float]] = {}
    with corral.open(home.url) as store:
        for option in ("--no-pty", "--pty"):
            result = subprocess.run(
                [*CORRAL, "run", "-d", option, "--json", "--", "sleep", "600"],
                env=home.env,
                cwd=home.folder,
                capture_output=True,
                check=True,
            )
            run = store.runs.get(json.loads(result.stdout)["id"])
            assert run.supervisor_pid is not None
            agent = process.read_stat(run.pid or 0)
            time.sleep(4)
            for role, pid in (
                ("supervisor", run.supervisor_pid),
                ("guard", agent.parent if agent else 0),
            ):
                for name, size in _sizes(pid).items():
                    values.setdefault(f"{role}, {name} (MB)", []).append(size)
            store.runs.stop(run.id)
            store.runs.wait(run.id)
            _wait_for_exit(run.supervisor_pid)
    return [
        Row(
            name,
            Spread.of(sizes),
            Bar("<=", 25) if name.startswith("supervisor") else None,
            unit="",
        )
        for name, sizes in values.items()
    ]


def _sizes(pid: int) -> dict[str, float]:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    values = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines}
    return {"RSS": values["Rss"], "PSS": values["Pss"]}


def _many_runs(bench: Bench, home: RunHome) -> list[Row]:
    """Start many runs that block until all of them run; each reports its identity."""
    count = bench.pick(AT_ONCE, 20)
    gate = home.folder / "gate"
    gate.unlink(missing_ok=True)
    os.mkfifo(gate)
    with corral.open(home.url) as store:
        numbers = {
            store.runs.start(
                command=["sh", "-c", f"read _ <'{gate}'; echo I am {n}; exit {n % 7}"],
                project=str(home.folder),
            ).id: n
            for n in range(count)
        }
        start_time = time.perf_counter()

        def start(id: str) -> None:
            answer = StartingSupervisor().start(store=store.address, run=id)
            assert "pid" in answer, answer

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(start, numbers))
        start_seconds = time.perf_counter() - start_time
        running = store.runs.list(state="running", limit=1_000).items
        assert len(running) == count, len(running)
        start_time = time.perf_counter()
        os.close(os.open(gate, os.O_WRONLY))
        wrong_count = 0
        for id, n in numbers.items():
            run = store.runs.wait(id, timeout_ms=300_000)
            wrong_count += run.exit_code != n % 7
        end_seconds = time.perf_counter() - start_time
        for id, n in numbers.items():
            _wait_for_exit(store.runs.get(id).supervisor_pid)
            text = store.outputs.open(id)
            wrong_count += bytes(text.bytes(0, 1_000)) != b"I am %d\n" % n
    return [
        Row(f"{count} runs at once: wrong records", Spread.of([wrong_count]), Bar("=", 0), unit=""),
        Row(f"{count} runs at once: time to start", Spread.of([start_seconds * 1e3]), unit="ms"),
        Row(f"{count} runs at once: time to end", Spread.of([end_seconds * 1e3]), unit="ms"),
    ]
