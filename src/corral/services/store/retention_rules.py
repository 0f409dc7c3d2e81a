"""The retention rules of all tables, in the order in which `prune` applies them."""

from corral.db.retention import CascadingRetention, RetentionRule
from corral.domain.alerts import ops as alerts
from corral.domain.charges import ops as charges
from corral.domain.chat.channels import ops as channels
from corral.domain.checkpoints import ops as checkpoints
from corral.domain.decisions import ops as decisions
from corral.domain.delegations import ops as delegations
from corral.domain.events import ops as events
from corral.domain.groups import ops as groups
from corral.domain.host_requests import ops as host_requests
from corral.domain.idempotency import ops as idempotency
from corral.domain.imports import ops as imports
from corral.domain.locks import ops as locks
from corral.domain.locks import touches
from corral.domain.mail import chains
from corral.domain.mail import ops as mail
from corral.domain.nodes import ops as nodes
from corral.domain.notes import ops as notes
from corral.domain.outputs import ops as outputs
from corral.domain.plans import ops as plans
from corral.domain.questions import ops as questions
from corral.domain.races import retention as race_retention
from corral.domain.runs import ops as runs
from corral.domain.sandbox_bridge import ops as sandbox_bridge
from corral.domain.schedules import occurrences
from corral.domain.schedules import ops as schedules
from corral.domain.sessions import retention as session_retention
from corral.domain.tasks import retention as task_retention
from corral.domain.tokens import ops as tokens
from corral.services.store.deletion import delete_notes, delete_runs, delete_sessions
from corral.services.store.origins_retention import ImportOriginsRetention

RETENTION_RULES: tuple[RetentionRule, ...] = (
    # First, because they are kept as long as the objects they name, and a dry run must count the
    # same rows.
    imports.RETENTION,
    ImportOriginsRetention(),
    mail.RETENTION,
    events.RETENTION,
    schedules.RETENTION,
    occurrences.RETENTION,
    nodes.RETENTION,
    alerts.RETENTION,
    tokens.RETENTION,
    idempotency.RETENTION,
    charges.RETENTION,
    charges.TOTALS_RETENTION,
    charges.COUNTERS_RETENTION,
    delegations.RETENTION,
    *plans.RETENTION,
    *checkpoints.RETENTION,
    CascadingRetention(task_retention.PRUNABLE, task_retention.delete_tasks),
    CascadingRetention(race_retention.PRUNABLE, race_retention.delete_races),
    locks.RETENTION,
    touches.RETENTION,
    questions.RETENTION,
    decisions.RETENTION,
    channels.MESSAGES_RETENTION,
    channels.CARDS_RETENTION,
    host_requests.RETENTION,
    chains.RETENTION,
    sandbox_bridge.RETENTION,
    groups.REACTIONS_RETENTION,
    groups.POSTS_RETENTION,
    CascadingRetention(groups.PRUNABLE, groups.delete_groups),
    CascadingRetention(notes.PRUNABLE, delete_notes),
    CascadingRetention(session_retention.PRUNABLE, delete_sessions),
    CascadingRetention(outputs.PRUNABLE, outputs.delete_expired),
    CascadingRetention(runs.PRUNABLE, delete_runs),
)
