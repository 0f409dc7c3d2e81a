"""Every operation is declared once, with all of its properties, and the declaration is sound."""

import ast
import inspect
import pydoc
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import corral
from corral.api import Corral
from corral.api.catalog import (
    OperationInfo,
    list_operations,
    resource_class,
    resource_classes,
    resource_names,
)
from corral.api.internal import InternalStore
from corral.api.mail import Mail
from corral.api.operation import Operation, Resource, find_operation
from corral.api.policy import OperationPolicy, PolicyFields
from corral.api.remote_table import list_calls
from corral.http.agent_permissions import check_agent_call
from corral.kernel.errors import Refused
from corral.services.tokens import TokenIdentity
from tests.support.source_tree import SOURCE, SOURCE_FILES, list_nodes

PUBLIC = list(list_operations())
INTERNAL = list(list_operations(InternalStore))
ROWS = PUBLIC + INTERNAL
NAMES = {row.name for row in ROWS}


def test_the_permission_checks_know_every_positional_argument() -> None:
    owners = [(Corral, PUBLIC), (InternalStore, INTERNAL)]
    for owner, operations in owners:
        for row in operations:
            parameters = row.signature.parameters.values()
            assert all(parameter.kind is not parameter.VAR_POSITIONAL for parameter in parameters)
            names = [
                parameter.name
                for parameter in parameters
                if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            ]
            declaration = find_operation(resource_class(row.attribute, owner), row.verb)
            assert declaration is not None
            bound = declaration.bind_arguments(tuple(range(len(names))), {})
            assert [*bound] == names, row.name
            with pytest.raises(TypeError):
                declaration.bind_arguments(tuple(range(len(names) + 1)), {})


def test_every_public_member_is_an_operation() -> None:
    classes = [*resource_classes().items(), *resource_classes(InternalStore).items()]
    others = {
        f"{attribute}.{name}"
        for attribute, resource in classes
        for name, member in vars(resource).items()
        if not name.startswith("_") and not isinstance(member, Operation)
    }
    facts = {f"{attribute}.{name}" for attribute, _ in classes for name in vars(Resource)}
    assert others - facts == {"db.url", "db.engine", "db.path", "db.part_of"}


def test_remote_form_of_a_stream_has_the_same_arguments() -> None:
    for row in PUBLIC:
        remote = row.policy.remote
        assert (remote is None) == (row.policy.streamed is None), row.name
        if remote is not None:
            signature = inspect.signature(remote)
            parameters = [*signature.parameters.values()][1:]
            assert parameters == [*row.signature.parameters.values()], row.name


def test_declarations_accept_every_field_of_a_policy() -> None:
    assert {*PolicyFields.__annotations__} == {*OperationPolicy.__struct_fields__}


def parameters(row: OperationInfo) -> set[str]:
    """Return the names of the arguments, with those of an unpacked TypedDict."""
    names = set()
    for parameter in row.signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            (options,) = typing.get_args(parameter.annotation)
            names |= {*options.__annotations__}
        else:
            names.add(parameter.name)
    return names


def test_every_argument_in_a_policy_exists() -> None:
    for row in ROWS:
        policy = row.policy
        location = () if policy.location is None else (policy.location.argument,)
        single = (policy.waits, policy.time_limit, policy.subject)
        others = {name for name in single if name is not None}
        named = {*policy.actor, *policy.local_arguments, *policy.server_arguments, *policy.paths}
        assert named | {*policy.objects, *location} | others <= parameters(row), row.name


def test_every_object_argument_names_a_resource() -> None:
    attributes = {attribute for row in ROWS for attribute in row.policy.objects.values()}
    assert attributes <= {*resource_names()}


def test_arguments_that_the_server_adds_are_not_in_the_request() -> None:
    for row in ROWS:
        assert row.policy.server_arguments.keys() <= row.policy.local_arguments.keys(), row.name


def test_properties_of_a_request_belong_to_operations_with_a_request() -> None:
    fields = ("waits", "local_arguments", "server_arguments", "paths", "location", "slow")
    fields += ("returns_secret", "agent", "objects", "subject")
    for row in ROWS:
        if row.policy.local is not None or row.policy.streamed is not None:
            assert [name for name in fields if getattr(row.policy, name)] == [], row.name


def test_internal_operations_have_no_properties_of_a_request() -> None:
    fields = ("local", "streamed", "waits", "local_arguments", "location", "slow", "agent")
    fields += ("server_arguments", "paths", "objects", "subject")
    for row in INTERNAL:
        assert [name for name in fields if getattr(row.policy, name)] == [], row.name


def test_public_and_internal_operations_have_different_names() -> None:
    assert {row.name for row in PUBLIC} & {row.name for row in INTERNAL} == set()


def test_every_decision_names_its_actor() -> None:
    assert [row.name for row in ROWS if row.policy.decision and not row.policy.actor] == []


def test_token_of_an_agent_calls_only_operations_with_a_rule() -> None:
    who = TokenIdentity("tok_1", "eve", "agent:agt_1", "agent:eve", "eve", None)
    store: Any = None  # refused before the store is used
    for call in list_calls():
        if call.policy.agent is None:
            with pytest.raises(Refused) as refused:
                check_agent_call(store, who, call, {})
            assert refused.value.details["call"] == call.name


def literal_keys(path: Path) -> Iterator[str]:
    """Yield the texts that are keys of dicts, or that sets and frozensets are made of."""
    for node in list_nodes(path):
        parts: list[ast.AST] = []
        if isinstance(node, ast.Dict):
            parts = [key for key in node.keys if key is not None]
        elif isinstance(node, ast.Set):
            parts = [*node.elts]
        for part in parts:
            for text in ast.walk(part):
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    yield text.value


def test_no_table_is_keyed_by_the_names_of_operations() -> None:
    """Properties of operations are in their declarations, where they cannot become stale.

    The tools of the MCP server name the operations that they call, in a tuple: that is a property
    of the tool.
    """
    tables = [
        f"{path.relative_to(SOURCE)}: {key}"
        for path in SOURCE_FILES
        for key in literal_keys(path)
        if key in NAMES
    ]
    assert tables == []


def test_inspect_shows_the_function_without_the_transaction(store: corral.Corral) -> None:
    signature = inspect.signature(store.mail.ack)
    assert [*signature.parameters] == ["letter", "fence"]
    assert inspect.getsource(store.mail.ack).startswith("def ack(tx: Tx, ")
    assert store.mail.ack.__module__ == "corral.domain.mail.outcomes"
    assert [*inspect.signature(store.agents.retire).parameters] == ["agent"]


def test_inspect_shows_the_method_of_a_workflow(store: corral.Corral) -> None:
    assert [*inspect.signature(store.mail.read_by).parameters] == ["letters", "run"]
    assert "def read_by(self" in inspect.getsource(store.mail.read_by)
    assert store.mail.read_by.__module__ == "corral.api.mail"


def test_help_of_a_resource_shows_signatures_and_docstrings() -> None:
    text = pydoc.plain(pydoc.render_doc(Mail))
    for operation in (Mail.ack, Mail.claim):
        assert f" {operation.name}{inspect.signature(operation)}" in text
        assert operation.__doc__ is not None
        assert operation.__doc__.partition("\n")[0] in text
