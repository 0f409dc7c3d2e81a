"""Operations for Corral's own processes: supervisors, the loops of the daemon, recovery.

`store.internal.runs.heartbeat(…)` is not a part of the public interface. Internal operations have
no HTTP request and no command, and may change in any release. They are declared as all others, and
the permissions of processes inside a run apply to them too.
"""

from typing import TYPE_CHECKING

from corral.api.lazy_resource import LazyResource

if TYPE_CHECKING:
    from corral.api.executor import Executor
    from corral.api.internal.alerts import InternalAlerts
    from corral.api.internal.channels import InternalChannels
    from corral.api.internal.charges import InternalCharges
    from corral.api.internal.chat import InternalChat
    from corral.api.internal.decisions import InternalDecisions
    from corral.api.internal.locks import InternalLocks
    from corral.api.internal.mail import InternalMail
    from corral.api.internal.nodes import InternalNodes
    from corral.api.internal.outputs import InternalOutputs
    from corral.api.internal.questions import InternalQuestions
    from corral.api.internal.races import InternalRaces
    from corral.api.internal.runs import InternalRuns
    from corral.api.internal.search import InternalSearch
    from corral.api.internal.tasks import InternalTasks
    from corral.api.internal.tokens import InternalTokens


class InternalStore:
    """The internal operations of an open store, by noun."""

    alerts: LazyResource["InternalAlerts"] = LazyResource("internal.alerts", "InternalAlerts")
    channels: LazyResource["InternalChannels"] = LazyResource(
        "internal.channels", "InternalChannels"
    )
    charges: LazyResource["InternalCharges"] = LazyResource("internal.charges", "InternalCharges")
    chat: LazyResource["InternalChat"] = LazyResource("internal.chat", "InternalChat")
    decisions: LazyResource["InternalDecisions"] = LazyResource(
        "internal.decisions", "InternalDecisions"
    )
    locks: LazyResource["InternalLocks"] = LazyResource("internal.locks", "InternalLocks")
    mail: LazyResource["InternalMail"] = LazyResource("internal.mail", "InternalMail")
    nodes: LazyResource["InternalNodes"] = LazyResource("internal.nodes", "InternalNodes")
    outputs: LazyResource["InternalOutputs"] = LazyResource("internal.outputs", "InternalOutputs")
    questions: LazyResource["InternalQuestions"] = LazyResource(
        "internal.questions", "InternalQuestions"
    )
    races: LazyResource["InternalRaces"] = LazyResource("internal.races", "InternalRaces")
    runs: LazyResource["InternalRuns"] = LazyResource("internal.runs", "InternalRuns")
    search: LazyResource["InternalSearch"] = LazyResource("internal.search", "InternalSearch")
    tasks: LazyResource["InternalTasks"] = LazyResource("internal.tasks", "InternalTasks")
    tokens: LazyResource["InternalTokens"] = LazyResource("internal.tokens", "InternalTokens")

    def __init__(self, executor: "Executor") -> None:
        self._executor = executor
