"""`/metrics`: what a Prometheus server asks for, as text."""

import time
from collections import Counter

from corral import __version__
from corral.api import Corral
from corral.http.feed import Feed

BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)


class Metrics:
    """Counts of what was answered, by route; what has none counts as other, so they are few."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self._answers: Counter[tuple[str, str, int]] = Counter()
        self._durations: Counter[float] = Counter()
        self._seconds = 0.0
        self._count = 0

    def note(self, method: str, route: str, status: int, seconds: float) -> None:
        self._answers[method, route, status] += 1
        self._count += 1
        self._seconds += seconds
        for bound in BUCKETS:
            if seconds <= bound:
                self._durations[bound] += 1
                break

    def text(self, store: Corral, feed: Feed) -> bytes:
        lines = [
            *_one("corral_info", "gauge", "The program.", 1, version=__version__),
            *_one("corral_up_seconds", "gauge", "Since the server began.", self._up()),
            *_one("corral_feed_subscribers", "gauge", "Subscribers of the feed.", feed.subscribers),
            *_one("corral_feed_events_total", "counter", "Events that came by.", feed.seen),
            *self._requests(),
            *_store_lines(store),
        ]
        return ("\n".join(lines) + "\n").encode()

    def _up(self) -> float:
        return round(time.monotonic() - self.began, 1)

    def _requests(self) -> list[str]:
        lines = [
            "# HELP corral_requests_total Requests that were answered.",
            "# TYPE corral_requests_total counter",
        ]
        for (method, route, status), count in sorted(self._answers.items()):
            labels = _labels(method=method, route=route, status=str(status))
            lines.append(f"corral_requests_total{labels} {count}")
        lines += [
            "# HELP corral_request_seconds How long requests took.",
            "# TYPE corral_request_seconds histogram",
        ]
        below = 0
        for bound in BUCKETS:
            below += self._durations[bound]
            lines.append(f"corral_request_seconds_bucket{_labels(le=str(bound))} {below}")
        lines.append(f"corral_request_seconds_bucket{_labels(le='+Inf')} {self._count}")
        lines.append(f"corral_request_seconds_sum {self._seconds:.6f}")
        lines.append(f"corral_request_seconds_count {self._count}")
        return lines


def _store_lines(store: Corral) -> list[str]:
    now = store.insights.overview()
    return [
        *_one("corral_runs_active", "gauge", "Runs that are going, as shown.", len(now.active)),
        *_one("corral_runs_queued", "gauge", "Runs that wait in line.", now.queued),
        *_one("corral_runs_attention", "gauge", "Runs that wait for you.", len(now.attention)),
        *_one("corral_runs_failed", "gauge", "Runs that failed in 24 hours.", len(now.failed)),
        *_one("corral_letters_dead", "gauge", "Letters that failed too often.", now.dead_letters),
        *_one("corral_letters_doubtful", "gauge", "Letters in doubt.", now.doubtful_letters),
        *_one("corral_cost_micros_today", "gauge", "Spent today.", now.today.cost_micros or 0),
    ]


def _one(name: str, kind: str, help: str, value: float, **labels: str) -> list[str]:
    return [
        f"# HELP {name} {help}",
        f"# TYPE {name} {kind}",
        f"{name}{_labels(**labels)} {value}",
    ]


def _labels(**labels: str) -> str:
    if not labels:
        return ""
    told = ",".join(
        '{}="{}"'.format(name, value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", ""))
        for name, value in labels.items()
    )
    return "{" + told + "}"
