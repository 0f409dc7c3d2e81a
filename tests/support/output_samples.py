"""Sample output: text that looks like an agent's, and readers that use small chunks."""

import random
from unittest.mock import patch

from corral.adapters.output import plain_file
from corral.adapters.output.reader import OutputFiles

KEY = b"sk-ant-api03-" + b"aB3dE6gH9jK2mN5pQ8sT1vW4yZ7" * 2


class _Narrow:
    """While active, growing files are read in chunks of a few hundred bytes."""

    def __enter__(self) -> None:
        self._patch = patch.object(plain_file, "READ_BYTES", 257)
        self._patch.start()

    def __exit__(self, *raised: object) -> None:
        self._patch.stop()


NARROW = _Narrow()


def follow_all(output: OutputFiles) -> bytes:
    """Return the whole output of a finished run."""
    return b"".join(piece.text for piece in output.follow(is_finished=lambda: True))


def text_of_lines(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def log_text(size: int, seed: int = 1) -> bytes:
    """Return text that compresses like agent and build logs.

    Prose without repetition between log lines of a few hundred sources, with times, numbers and
    ids.
    """
    from pydoc_data.topics import topics  # words as in a book of plain English

    rng = random.Random(seed)
    prose = [line for topic in sorted(topics) for line in topics[topic].splitlines() if line]
    words = [word for line in prose for word in line.split() if word.isalpha()]
    places = [
        f"{rng.choice(words)}/{rng.choice(words)}.py:{rng.randint(1, 900)}"
        f" {' '.join(rng.choices(words, k=rng.randint(4, 12)))}"
        for _ in range(300)
    ]
    out: list[str] = []
    length, second, at = 0, 0, 0
    while length < size:
        second, line_start = second + rng.randint(0, 3), len(out)
        time = f"{second // 3_600 % 24:02}:{second // 60 % 60:02}:{second % 60:02}"
        level = rng.choice(["DEBUG", "INFO", "INFO", "INFO", "WARN", "ERROR"])
        out.append(
            f"2026-05-{1 + second // 86_400 % 28:02} {time}.{rng.randint(0, 999):03} {level} "
            f"{rng.choice(places)} id={rng.getrandbits(32):08x}"
            f" n={rng.randint(0, 5_000)}\n"
        )
        for _ in range(rng.choice([0, 0, 1, 3])):
            out.append(prose[at % len(prose)] + "\n")
            at += rng.randint(1, 7)
        length = length + sum(map(len, out[line_start:]))
    return "".join(out).encode()[:size]
