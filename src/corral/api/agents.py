"""Operations of `store.agents`."""

from corral.api import agent_rules as rules
from corral.api.operation import Resource, read, write
from corral.domain.agents import ops
from corral.services import agents


class Agents(Resource):
    """Agents: lasting identities with a name, a role, a model, instructions and tools.

    Every edit creates a new version; versions are immutable.
    """

    noun = "agent"
    subjects = ("agent",)
    are_in_projects = False

    create = write(agents.create, people_only=True)
    get = read(ops.get, agent=rules.only_self)
    list = read(ops.list_agents, mode="one")
    edit = write(agents.edit, repeatable=True, people_only=True)
    versions = read(ops.list_versions)
    version = read(ops.get_version)
    grant = write(ops.grant, repeatable=True, people_only=True)
    revoke = write(ops.revoke, people_only=True)
    grants = read(ops.list_grants, agent=rules.only_self)
    allows = read(ops.is_tool_allowed, agent=rules.only_self)
    retire = write(agents.retire, people_only=True)
    restore = write(agents.restore, people_only=True)
