"""Duration of a command, compared with an interpreter that does nothing."""

import compileall
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import corral
from bench.harness import Bar, Bench, Rates, Rival, Row
from bench.opponents import BODY, open_store

TITLE = "Start-up of commands"
ABOUT = """
    Agents call `corral` from hooks at every tool use. The time of a whole command over `python
    -c pass` with the same interpreter; the list has 20 letters.
"""
CORRAL = str(Path(sys.executable).parent / "corral")
LETTERS = 20
COMMANDS = {
    "corral --version": ([CORRAL, "--version"], Bar("<=", 2.5)),
    "corral mail list --json": ([CORRAL, "mail", "list", "--json"], Bar("<=", 8)),
}


def measure(bench: Bench) -> list[Row]:
    # As pip does on installation; a run that cannot write bytecode would compile at every start.
    compileall.compile_dir(str(Path(corral.__file__).parent), quiet=1)
    url = f"sqlite:///{bench.new_file()}"
    with open_store(url) as store:
        for _ in range(LETTERS):
            store.mail.put("agent:ada", BODY)
    environment = os.environ | {"CORRAL_STORE": url, "CORRAL_HOME": str(bench.folder)}
    result = bench.compare(
        Rival("python -c pass", partial(run_command, [sys.executable, "-c", "pass"], environment)),
        [
            Rival(name, partial(run_command, command, environment))
            for name, (command, _) in COMMANDS.items()
        ],
        rounds=bench.pick(40, 12),
    )
    return [
        Row(name, result.speed_of_base_over(name, "run"), bar)
        for name, (_, bar) in COMMANDS.items()
    ]


def run_command(command: list[str], environment: dict[str, str]) -> Rates:
    start = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return {"run": 1 / (time.perf_counter() - start)}
