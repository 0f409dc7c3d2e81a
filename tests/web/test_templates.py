"""The attributes that templates read exist: StrictUndefined fails only when a page is rendered."""

import ast
from collections.abc import Iterator
from pathlib import Path

from jinja2 import nodes
from jinja2.runtime import LoopContext

from corral.web import render

SOURCE = Path(render.HERE).parent
TEMPLATES = render.HERE / "templates"
BUILT_IN = {name for kind in (str, int, list, dict, LoopContext) for name in dir(kind)}
GROUPBY = {"grouper", "list"}  # of a group of the filter `groupby`


def declared_names(file: Path) -> Iterator[str]:
    """Yield the names that a module gives to fields, functions, arguments and keys."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name) | ast.Attribute(attr=name)):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.keyword(arg=str(name)):
                yield name
            case ast.Dict(keys=keys):
                yield from (key.value for key in keys if isinstance(key, ast.Constant))  # type: ignore[misc]


def read_attributes(template: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each attribute that a template reads."""
    tree = render.environment().parse(template.read_text(encoding="utf-8"))
    for node in tree.find_all(nodes.Getattr):
        yield node.lineno, node.attr


def template_names(template: Path) -> Iterator[str]:
    """Yield the names of the macros and variables of a template."""
    tree = render.environment().parse(template.read_text(encoding="utf-8"))
    for node in tree.find_all((nodes.Macro, nodes.Assign)):
        target = node.name if isinstance(node, nodes.Macro) else getattr(node.target, "name", None)
        if target is not None:
            yield target


def test_attribute_read_by_a_template_is_declared() -> None:
    templates = sorted(TEMPLATES.glob("*.html"))
    declared = BUILT_IN | GROUPBY
    declared |= {name for file in SOURCE.rglob("*.py") for name in declared_names(file)}
    declared |= {name for template in templates for name in template_names(template)}
    unknown = [
        f"{template.name}:{line}: {name}"
        for template in templates
        for line, name in read_attributes(template)
        if name not in declared
    ]
    assert unknown == []
