"""Budget enforcement: compare the cost of a run with every budget that covers it."""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from corral.adapters.providers.facts import UsageFact
from corral.domain.runs.model import Run
from corral.kernel.errors import CorralError, Refused
from corral.supervisor.retry import AGENT_STORE_TIMEOUT

if TYPE_CHECKING:
    from corral.adapters.token_prices import ModelRates
    from corral.api import Corral
    from corral.supervisor.agent_io import AgentStatus

CHECK_SECONDS = 1.0  # between two checks with new usage
# Between two checks without new usage. Other runs spend from the same budgets.
IDLE_CHECK_SECONDS = 10.0
# An agent that works for this long without any report of usage counts as unmeasured.
UNMEASURED_SECONDS = 60.0


class BudgetWatch:
    """Sets `AgentStatus.over_budget` to the reason when the run must stop."""

    def __init__(self, store: "Corral", run: Run, status: "AgentStatus") -> None:
        self._store, self._run, self._status = store, run, status
        self._rates: dict[str, ModelRates | None] = {}
        self._last_pending: Sequence[UsageFact] = ()
        self._next_check = self._next_idle_check = 0.0
        self._active_since: float | None = None
        self.is_measured = False

    def notice_activity(self) -> None:
        """Record that the agent works: from now on its usage must be reported."""
        if self._active_since is None:
            self._active_since = time.monotonic()

    def check(self, pending: Sequence[UsageFact] = ()) -> None:
        """Compare the budgets with the charges and the `pending` usage, at most once a second.

        An agent that works without reporting usage is stopped if a budget covers it.
        """
        now = time.monotonic()
        self.is_measured = self.is_measured or bool(pending)
        due = self._next_idle_check if pending == self._last_pending else self._next_check
        if now < due or self._status.over_budget:
            return
        self._last_pending, self._next_check = pending, now + CHECK_SECONDS
        self._next_idle_check = now + IDLE_CHECK_SECONDS
        with suppress(CorralError), self._store.server_timeout(AGENT_STORE_TIMEOUT):
            if not self.is_measured and self._is_active_for(now, UNMEASURED_SECONDS):
                self.stop_if_limited("its usage cannot be read, so its budget cannot be enforced")
            costs = [self.compute_cost(used) for used in pending]
            self.compare(sum(cost or 0 for cost in costs))
            for used, cost in zip(pending, costs, strict=True):
                if cost is None:
                    self.refuse_unknown_price(used.model)

    def _is_active_for(self, now: float, seconds: float) -> bool:
        return self._active_since is not None and now - self._active_since >= seconds

    def compare(self, pending_micros: int = 0) -> None:
        """Stop the run if a budget that covers it is spent."""
        run = self._run
        over = self._store.internal.charges.exceeded_budget(
            run.id,
            project_id=run.project_id,
            agent_id=run.agent_id,
            pending_micros=pending_micros,
        )
        if over is not None and not self._status.over_budget:
            self._status.over_budget = over.reason

    def refuse_unknown_price(self, model: str | None) -> None:
        """Stop the run if a budget covers it and the price of its model is unknown.

        The setting `budgets.unknown_prices` can allow such runs.
        """
        run = self._run
        agent = self._store.agents.get(run.agent_id).name if run.agent_id else None
        choice = self._store.settings.get(
            "budgets.unknown_prices", agent=agent, project=run.project_id
        )
        if choice.value == "stop":
            self.stop_if_limited(
                f"the price of {model or 'its model'} is unknown, so its budget cannot be enforced "
                "(`corral setting set budgets.unknown_prices allow` lets such runs continue)"
            )

    def stop_if_limited(self, reason: str) -> None:
        """Stop the run for this reason if any budget covers it."""
        run = self._run
        limited = self._store.internal.charges.exceeded_budget(
            run.id, project_id=run.project_id, agent_id=run.agent_id, pending_micros=None
        )
        if limited is not None and not self._status.over_budget:
            self._status.over_budget = reason

    # -- prices ----------------------------------------------------------------------------------

    def compute_cost(self, used: UsageFact) -> int | None:
        """Return the reported cost or the price of the tokens; None when the price is unknown."""
        if used.cost_micros is not None:
            return used.cost_micros
        rates = self.find_rates(used.model)
        return None if rates is None else rates.cost(used)

    def find_rates(self, model: str | None) -> "ModelRates | None":
        """Return the prices of a model; None if they are unknown.

        A separate process loads the large price table, once for each model.
        """
        if not model:
            return None
        if model not in self._rates:
            from corral.adapters import token_prices

            try:
                self._rates[model] = token_prices.fetch_rates(model, self._run.provider)
            except Refused:
                return None  # no answer; the next call asks again
        return self._rates[model]
