"""Move a store between four places while other processes use it, and check every accepted letter.

    python -m tests.torture --moves [--count 14] [--operations 10000] [--seed 1]

The places are two SQLite files and two PostgreSQL databases. Writers put, claim and acknowledge
letters through handles that they open by the name of any place and keep open across moves. Each
writer records what the store accepted in a file of its own. Some movers are killed with SIGKILL;
then the move is retried or cancelled. At the end a checker reads the store and compares it with the
records: every accepted letter exists once, every rejected one is absent, every acknowledged one is
done, and exactly one place accepts writes.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import IO

import apsw
import psycopg

import corral
from corral.api import Corral
from corral.db import connect
from corral.db.store_move_record import read_store_move_if_current
from corral.domain.mail.model import Letter
from corral.kernel.errors import CorralError, IllegalMove, StoreUnavailable
from tests.torture.ledger import Batch, append_batch, format_counts
from tests.torture.workspace import folder_for

MAILBOX = "agent:pool"
WRITERS = 4
HANDLES = 3
MOVER_SECONDS = 120.0
SETTLED_REASONS = ("moved", "arriving", "missing")
"""Why a store rejects a call during a move; nothing was changed then."""


# -- a writer -------------------------------------------------------------------------------------


class Writer:
    """One process that uses the store. Lines of its record: `put BODY`, `ack BODY`, `no BODY`
    (rejected, must be absent), `maybe-put BODY`, `maybe-ack BODY` (outcome unknown), `claim BODY
    FENCE ADDRESS`."""

    def __init__(self, number: int, seed: int, folder: Path, urls: list[str]) -> None:
        self.number = number
        self.random = random.Random(seed * 1_000 + number)
        self.folder = folder
        self.urls = urls
        self.record: IO[str] = (folder / f"writer-{number}").open("w", buffering=1)
        self.handles: list[Corral] = []
        self.claimed: list[Letter] = []
        self.count = 0

    def work(self) -> None:
        while not (self.folder / "stop").exists():
            if not self.handles or (len(self.handles) < HANDLES and self.random.random() < 0.1):
                self.open_another()
                continue
            handle = self.random.choice(self.handles)
            try:
                self.use(handle)
            except StoreUnavailable as error:
                # A handle whose writes were blocked is sometimes kept: its store may be moved back.
                if error.reason not in SETTLED_REASONS or self.random.random() < 0.5:
                    self.drop(handle)
            if self.random.random() < 0.05:
                self.drop(handle)
        for handle in list(self.handles):
            self.drop(handle)
        self.record.close()

    def open_another(self) -> None:
        visited = (self.folder / "visited").read_text().split()
        url = self.random.choice(self.urls)
        try:
            # Do not create a store in a place that never held this one.
            self.handles.append(corral.open(url, actor="writer", create=url in visited))
        except StoreUnavailable as error:
            if error.reason not in (*SETTLED_REASONS, "locked", "older"):
                self.record.write(f"strange open {error.reason} {error.message}\n")
            time.sleep(0.01)

    def drop(self, handle: Corral) -> None:
        if handle in self.handles:
            self.handles.remove(handle)
            handle.close()

    def use(self, handle: Corral) -> None:
        chance = self.random.random()
        if chance < 0.5:
            self.put(handle)
        elif self.claimed and chance < 0.8:
            self.acknowledge(handle)
        else:
            self.claim(handle)

    def claim(self, handle: Corral) -> None:
        letters = handle.mail.claim(MAILBOX, owner=f"writer-{self.number}")
        self.claimed += letters
        for letter in letters:
            self.record.write(f"claim {letter.body} {letter.fence} {handle.address}\n")

    def put(self, handle: Corral) -> None:
        self.count += 1
        body = f"{self.number}-{self.count}"
        try:
            handle.mail.put(MAILBOX, body)
        except StoreUnavailable as error:
            unknown = error.reason not in SETTLED_REASONS
            self.record.write(f"{'maybe-put' if unknown else 'no'} {body}\n")
            raise
        self.record.write(f"put {body}\n")

    def acknowledge(self, handle: Corral) -> None:
        letter = self.claimed.pop(self.random.randrange(len(self.claimed)))
        try:
            handle.mail.ack(letter)
        except StoreUnavailable as error:
            if error.reason in SETTLED_REASONS:
                self.claimed.append(letter)
            else:
                self.record.write(f"maybe-ack {letter.body}\n")
            raise
        except (IllegalMove, CorralError) as error:
            self.record.write(f"strange ack {letter.body}: {error.message}\n")
            return
        self.record.write(f"ack {letter.body}\n")


# -- a mover --------------------------------------------------------------------------------------


def move(url: str, target: str) -> int:
    """Move the store to which `url` leads; prints how the move ended."""
    try:
        with corral.open(url, actor="mover", create=False) as store:
            if store.address == target:
                print("already there")
                return 0
            store.db.move(target)
    except CorralError as error:
        print(f"{type(error).__name__}: {error.message}")
        return 1
    return 0


def cancel(url: str) -> int:
    """Cancel the move of the store at `url`, if one was started."""
    try:
        with corral.open(url, actor="mover", create=False) as store:
            store.db.cancel_move()
    except CorralError as error:
        print(f"{type(error).__name__}: {error.message}")
        return 1
    return 0


# -- the stress test ------------------------------------------------------------------------------


class MoveStress:
    def __init__(self, folder: Path, urls: list[str], seed: int) -> None:
        self.folder = folder
        self.urls = urls
        self.seed = seed
        self.random = random.Random(seed)
        self.current = urls[0]
        self.moves: Counter[str] = Counter()
        self.kills: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.writers: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-m", "tests.torture.store_moves", *arguments], stdout=subprocess.PIPE
        )

    def operations(self) -> Counter[str]:
        result: Counter[str] = Counter()
        for number in range(len(self.writers)):
            with suppress(FileNotFoundError), (self.folder / f"writer-{number}").open() as file:
                result.update(line.split()[0] for line in file if line.strip())
        return result

    def run(self, moves: int, operations: int) -> None:
        corral.open(self.current, actor="stress").close()
        self.visit(self.current)
        for number in range(WRITERS):
            arguments = ["writer", str(number), str(self.seed), str(self.folder), *self.urls]
            self.writers.append(self.start(*arguments))
        try:
            while self.moves.total() < moves or self.count_operations() < operations:
                time.sleep(self.random.uniform(0, 0.3))
                self.move_once()
                if len(self.wrong) > 20:
                    break
        finally:
            (self.folder / "stop").touch()
            for writer in self.writers:
                if writer.wait(60) != 0:
                    self.wrong.append(f"a writer ended with {writer.returncode}")
        self.finish()

    def count_operations(self) -> int:
        counts = self.operations()
        return counts["put"] + counts["ack"]

    def visit(self, url: str) -> None:
        with (self.folder / "visited").open("a") as file:
            file.write(url + "\n")

    def move_once(self) -> None:
        target = self.random.choice(self.free_places())
        name = f"{_engine(self.current)} to {_engine(target)}"
        kill = self.random.random() < 0.4
        while not self.attempt(target, kill=kill):
            if self.random.random() < 0.4 and self.cancel():
                self.moves["cancelled"] += 1
                return
            kill = kill and self.random.random() < 0.5
        self.moves[name] += 1
        self.current = target
        self.visit(target)

    def free_places(self) -> list[str]:
        """Return the places that can receive the store: unused, or already left."""
        free = []
        for url in self.urls:
            if url != self.current:
                with suppress(StoreUnavailable):
                    database = connect(url, actor="stress", create=False)
                    result = read_store_move_if_current(database)
                    database.close()
                    if result is not None and result.url != self.current:
                        continue
                free.append(url)
        return free

    def attempt(self, target: str, *, kill: bool) -> bool:
        """Return whether the move completed."""
        mover = self.start("mover", self.current, target)
        if kill:
            time.sleep(self.random.uniform(0.2, 1.2))
            if mover.poll() is None:
                mover.send_signal(signal.SIGKILL)
                self.kills["mover"] += 1
        text = mover.communicate(timeout=MOVER_SECONDS)[0].decode().strip()
        if mover.returncode not in (0, -signal.SIGKILL):
            self.wrong.append(f"move to {target}: {text}")
        return mover.returncode == 0

    def cancel(self) -> bool:
        """Return whether the store stays; False: the move can only be completed."""
        canceller = self.start("cancel", self.current)
        text = canceller.communicate(timeout=MOVER_SECONDS)[0].decode().strip()
        if canceller.returncode != 0 and "in use" not in text and "was moved" not in text:
            self.wrong.append(f"cancel: {text}")
        if canceller.returncode == 0:
            # It may have been killed after the switch: then the old name leads to the new place.
            with corral.open(self.current, actor="stress") as store:
                self.current = store.address
        return canceller.returncode == 0

    # -- the checker ------------------------------------------------------------------------------

    def finish(self) -> None:
        for url in self.urls:
            with suppress(StoreUnavailable), corral.open(url, actor="t", create=False) as store:
                if store.address != self.current:
                    self.wrong.append(f"{url} leads to {store.address}, not to {self.current}")
            if url != self.current:
                self.check_shut(url)
        letters: Counter[str] = Counter()
        states: dict[str, str] = {}
        fences: dict[str, int] = {}
        for body, state, fence in read_letters(self.current):
            letters[body] += 1
            states[body], fences[body] = state, fence
        with corral.open(self.current, actor="stress") as store:
            results = [finding for finding in store.db.verify() if finding.state == "broken"]
            self.wrong += [f"verify: {finding.check}: {finding.message}" for finding in results]
        self.check_letters(letters, states)
        self.check_claims(fences)

    def check_shut(self, url: str) -> None:
        try:
            database = connect(url, actor="stress", create=False)
        except StoreUnavailable:
            return
        try:
            result = read_store_move_if_current(database)
            if result is None and database.schema_version() == 0:
                return  # never used
            if result is None or result.phase not in ("gone", "arriving"):
                self.wrong.append(f"{url} can be written: {result}")
        finally:
            database.close()

    def check_letters(self, letters: Counter[str], states: dict[str, str]) -> None:
        acknowledged: Counter[str] = Counter()
        known: set[str] = set()
        lost = 0
        for number in range(WRITERS):
            for line in (self.folder / f"writer-{number}").read_text().splitlines():
                action, _, body = line.partition(" ")
                if action in ("put", "maybe-put"):
                    known.add(body)
                if action == "put" and letters[body] != 1:
                    lost += 1
                    self.wrong.append(f"accepted letter {body} exists {letters[body]} times")
                elif action == "no" and letters[body]:
                    self.wrong.append(f"rejected letter {body} exists")
                elif action == "ack":
                    acknowledged[body] += 1
                    if states.get(body) != "done":
                        self.wrong.append(f"acknowledged letter {body} is {states.get(body)}")
                elif action == "strange":
                    self.wrong.append(line)
        self.wrong += [
            f"{body} was acknowledged {n} times" for body, n in acknowledged.items() if n > 1
        ]
        self.wrong += [f"{body} was not put by a writer" for body in letters if body not in known]

    def check_claims(self, fences: dict[str, int]) -> None:
        """An accepted claim raised the fence of its letter, and no other claim got that fence."""
        claimed: Counter[tuple[str, int]] = Counter()
        for number in range(len(self.writers)):
            for line in (self.folder / f"writer-{number}").read_text().splitlines():
                action, _, rest = line.partition(" ")
                if action != "claim":
                    continue
                body, fence, address = rest.split(maxsplit=2)
                claimed[body, int(fence)] += 1
                if fences.get(body, 0) < int(fence):
                    self.wrong.append(
                        f"claim {fence} of {body} at {address} is lost (fence {fences.get(body)})"
                    )
        self.wrong += [
            f"{body} was claimed {n} times with fence {fence}"
            for (body, fence), n in claimed.items()
            if n > 1
        ]


def read_letters(url: str) -> list[tuple[str, str, int]]:
    """Body, state and fence of every letter, read without Corral's code."""
    query = "SELECT body, state, fence FROM letters"
    if url.startswith("sqlite"):
        file = apsw.Connection(url.removeprefix("sqlite:///"))
        try:
            return [
                (json.loads(str(body)), str(state), int(str(fence)))
                for body, state, fence in file.execute(query)
            ]
        finally:
            file.close()
    with psycopg.connect(url) as server:
        return [(str(body), str(state), int(fence)) for body, state, fence in server.execute(query)]


def _engine(url: str) -> str:
    return "SQLite" if url.startswith("sqlite") else "PostgreSQL"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=14, help="least number of moves")
    parser.add_argument("--operations", type=int, default=10_000, help="least accepted writes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    parser.add_argument("--into", metavar="FILE", help="append a line for this batch")
    wanted = parser.parse_args(arguments)
    from tests.support.postgres_server import PostgresServer

    server = PostgresServer()
    try:
        with folder_for("moves", keep=wanted.keep) as folder:
            os.environ["CORRAL_HOME"] = str(folder / "home")
            places = [f"sqlite:///{folder}/a.db", server.new_database()]
            places += [f"sqlite:///{folder}/b.db", server.new_database()]
            print(f"moves, {wanted.count} at least, seed {wanted.seed}", flush=True)
            stress = MoveStress(folder, places, wanted.seed)
            start = time.monotonic()
            stress.run(wanted.count, wanted.operations)
            seconds = time.monotonic() - start
            counts = stress.operations()
            print(f"moves       {stress.moves.total()} ({format_counts(stress.moves)})")
            print(f"killed      {format_counts(stress.kills) or 'none'}")
            accepted = counts["put"] + counts["ack"]
            print(f"operations  {accepted:,} accepted in {seconds:.0f} s ({format_counts(counts)})")
            print(f"wrong       {len(stress.wrong)}")
            for text in stress.wrong[:20]:
                print(f"  ! {text}")
            batch = Batch(
                "both", "moves", wanted.seed, dict(stress.kills), seconds, len(stress.wrong)
            )
            batch.command = " ".join(["--moves", *arguments])
            append_batch(wanted.into, batch)
            return 1 if stress.wrong else 0
    finally:
        server.close()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["writer", number, seed, folder, *urls]:
            Writer(int(number), int(seed), Path(folder), urls).work()
        case ["mover", url, target]:
            sys.exit(move(url, target))
        case ["cancel", url]:
            sys.exit(cancel(url))
