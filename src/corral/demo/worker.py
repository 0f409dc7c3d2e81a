"""A worker of the demo's team: `python -m corral.demo.worker`, as the command of an agent.

It takes one task after the other, locks the file that the task is about, writes it and submits the
task, until the whole graph is done. It works on a task for as many seconds as its description says.
"""

import os
import time
from pathlib import Path

import corral
from corral.api import Corral

PAUSE = 0.1


def main() -> None:
    agent, run = os.environ["CORRAL_AGENT"], os.environ["CORRAL_RUN"]
    with corral.open() as store:
        project = store.projects.by_dir(".").id
        while _is_open(store, project):
            task = store.tasks.claim(project, agent, run=run)
            if task is None:
                time.sleep(PAUSE)
                continue
            print(f"{agent} does {task.key}", flush=True)
            file = Path(f"{task.key}.txt")
            lock = store.locks.acquire(project, str(file), agent, run=run)
            time.sleep(float(task.description or 0))
            file.write_text(f"{task.title}, by {agent}\n")
            store.locks.release(lock)
            store.tasks.submit(task, {"files": [str(file)], "text": f"{file} is written."})


def _is_open(store: Corral, project: str) -> bool:
    counts = store.tasks.counts(project)
    return any(count and state != "done" for state, count in counts.items())


if __name__ == "__main__":
    main()
