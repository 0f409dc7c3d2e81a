"""`/metrics` in the Prometheus text format."""

import time
from collections import Counter

from corral import __version__
from corral.api import Corral
from corral.http.feed import EventFeed

BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)


class Metrics:
    """Counters of responses by route. Unknown routes count as "other", so labels are bounded."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()
        self._responses: Counter[tuple[str, str, int]] = Counter()
        self._durations: Counter[float] = Counter()
        self._seconds = 0.0
        self._count = 0

    def record(self, method: str, route: str, status: int, seconds: float) -> None:
        self._responses[method, route, status] += 1
        self._count += 1
        self._seconds += seconds
        for bound in BUCKETS:
            if seconds <= bound:
                self._durations[bound] += 1
                break

    def render(self, store: Corral, feed: EventFeed) -> bytes:
        lines = [
            *_format_metric("corral_info", "gauge", "Version of Corral.", 1, version=__version__),
            *_format_metric(
                "corral_up_seconds",
                "gauge",
                "Seconds since the server started.",
                self._measure_uptime(),
            ),
            *_format_metric(
                "corral_feed_subscribers",
                "gauge",
                "Subscribers of the event feed.",
                feed.subscriber_count,
            ),
            *_format_metric(
                "corral_feed_events_total", "counter", "Events read by the feed.", feed.seen
            ),
            *self._request_metrics(),
            *_store_metrics(store),
        ]
        return ("\n".join(lines) + "\n").encode()

    def _measure_uptime(self) -> float:
        return round(time.monotonic() - self._started_at, 1)

    def _request_metrics(self) -> list[str]:
        lines = [
            "# HELP corral_requests_total Responses by method, route and status.",
            "# TYPE corral_requests_total counter",
        ]
        for (method, route, status), count in sorted(self._responses.items()):
            labels = _format_labels(method=method, route=route, status=str(status))
            lines.append(f"corral_requests_total{labels} {count}")
        lines += [
            "# HELP corral_request_seconds Duration of requests.",
            "# TYPE corral_request_seconds histogram",
        ]
        cumulative = 0
        for bound in BUCKETS:
            cumulative += self._durations[bound]
            lines.append(
                f"corral_request_seconds_bucket{_format_labels(le=str(bound))} {cumulative}"
            )
        lines.append(f"corral_request_seconds_bucket{_format_labels(le='+Inf')} {self._count}")
        lines.append(f"corral_request_seconds_sum {self._seconds:.6f}")
        lines.append(f"corral_request_seconds_count {self._count}")
        return lines


def _store_metrics(store: Corral) -> list[str]:
    overview = store.insights.overview()
    return [
        *_format_metric("corral_runs_active", "gauge", "Active runs.", len(overview.active)),
        *_format_metric("corral_runs_queued", "gauge", "Queued runs.", overview.queued),
        *_format_metric(
            "corral_runs_attention", "gauge", "Runs that need attention.", len(overview.attention)
        ),
        *_format_metric(
            "corral_runs_failed",
            "gauge",
            "Runs that failed in the last 24 hours.",
            len(overview.failed),
        ),
        *_format_metric("corral_letters_dead", "gauge", "Dead letters.", overview.dead_letters),
        *_format_metric(
            "corral_letters_unconfirmed",
            "gauge",
            "Messages whose delivery is unconfirmed.",
            overview.unconfirmed_letters,
        ),
        *_format_metric(
            "corral_cost_micros_today",
            "gauge",
            "Cost of today in millionths of a dollar.",
            overview.today.cost_micros or 0,
        ),
    ]


def _format_metric(name: str, kind: str, help: str, value: float, **labels: str) -> list[str]:
    return [
        f"# HELP {name} {help}",
        f"# TYPE {name} {kind}",
        f"{name}{_format_labels(**labels)} {value}",
    ]


def _format_labels(**labels: str) -> str:
    if not labels:
        return ""
    pairs = ",".join(
        '{}="{}"'.format(name, value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", ""))
        for name, value in labels.items()
    )
    return "{" + pairs + "}"
