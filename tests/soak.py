"""Run the suite, or a part of it, several times in random order while all cores are busy.

    python -m tests.soak                               # the whole suite, 5 times
    python -m tests.soak --runs 50 tests/supervisor tests/daemon

A test that depends on scheduling, speed or order fails here sooner than in a quiet run. Each run
has another order; `--seed` repeats one. All runs are made, also after a failure.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

BUSY = "while True: pass"


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run_once(seed: int, workers: int, arguments: list[str]) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), "--dist", "worksteal"]
    return subprocess.run([*command, f"--shuffle={seed}", *arguments], check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    cores = os.cpu_count() or 1
    parser.add_argument("--runs", type=int, default=5, help="how many runs (default: 5)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first run (default: 1)")
    parser.add_argument("--workers", type=int, default=2 * cores + 1, help="pytest workers")
    parser.add_argument("--load", type=int, default=cores, help="busy processes (default: cores)")
    options, arguments = parser.parse_known_args()
    failed = []
    with busy_cores(options.load):
        for seed in range(options.seed, options.seed + options.runs):
            began = time.monotonic()
            code = run_once(seed, options.workers, arguments)
            print(f"seed {seed}: exit {code}, {time.monotonic() - began:.0f} s", flush=True)
            if code:
                failed.append(seed)
    print(f"{options.runs - len(failed)} of {options.runs} runs passed; failed seeds: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
