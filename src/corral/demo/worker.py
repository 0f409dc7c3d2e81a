"""A worker of the demo's team: an agent with the command `python -m corral.demo.worker`.

It claims one task after the other, locks the file KEY.txt, writes it and submits the task, until
all tasks are done. The description of a task is the number of seconds to sleep.
"""

import os
import time
from pathlib import Path

import corral
from corral.api import Corral

POLL_SECONDS = 0.1


def main() -> None:
    agent, run = os.environ["CORRAL_AGENT"], os.environ["CORRAL_RUN"]
    with corral.open() as store:
        project = store.projects.by_dir(".").id
        while _has_open_tasks(store, project):
            task = store.tasks.claim(project, agent, run=run)
            if task is None:
                time.sleep(POLL_SECONDS)
                continue
            print(f"{agent} works on {task.key}", flush=True)
            file = Path(f"{task.key}.txt")
            lock = store.locks.acquire(project, str(file), agent, run=run)
            time.sleep(float(task.description or 0))
            file.write_text(f"{task.title}, by {agent}\n")
            store.locks.release(lock)
            store.tasks.submit(task, {"files": [str(file)], "text": f"Wrote {file}."})


def _has_open_tasks(store: Corral, project: str) -> bool:
    counts = store.tasks.counts(project)
    return any(count and state != "done" for state, count in counts.items())


if __name__ == "__main__":
    main()
