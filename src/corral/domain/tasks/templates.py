"""Built-in templates: the tasks of a common kind of work, as data."""

from collections.abc import Sequence

import msgspec

from corral.domain.tasks.model import TaskSpec


class TemplateTask(msgspec.Struct, frozen=True):
    """One task of a template."""

    key: str
    role: str
    title: str
    description: str
    depends_on: list[str] = []
    is_checked: bool = False
    """Whether the task builds something that a check can verify."""


class TaskTemplate(msgspec.Struct, frozen=True):
    name: str
    help: str
    parts: list[TemplateTask]

    def expand(
        self, *, key: str, title: str, depends_on: Sequence[str], check: str | None
    ) -> list[TaskSpec]:
        """Return the tasks for one piece of work; its first tasks depend on `depends_on`."""
        return [
            TaskSpec(
                key=f"{key}/{part.key}",
                title=f"{part.title}: {title}",
                role=part.role,
                description=part.description,
                depends_on=[f"{key}/{dependency}" for dependency in part.depends_on]
                or [*depends_on],
                check=check if part.is_checked else None,
            )
            for part in self.parts
        ]


_REVIEW = (
    "Try the change, look for inputs that break it, and report what must be fixed. Do not change "
    "any files."
)

_ALL = (
    TaskTemplate(
        "feature",
        "A new feature: plan, build, test, review, document.",
        [
            TemplateTask(
                "plan",
                "planner",
                "Plan",
                "Describe what to build, which files it touches, and how to verify that it works.",
            ),
            TemplateTask("build", "builder", "Build", "Implement the plan.", ["plan"], True),
            TemplateTask(
                "test",
                "tester",
                "Test",
                "Write tests for everything that the plan promises, including edge cases.",
                ["plan"],
            ),
            TemplateTask("review", "reviewer", "Review", _REVIEW, ["build", "test"]),
            TemplateTask(
                "docs", "writer", "Document", "Explain to users how to use it.", ["review"]
            ),
        ],
    ),
    TaskTemplate(
        "bugfix",
        "A bug: reproduce, fix, review.",
        [
            TemplateTask(
                "reproduce",
                "debugger",
                "Reproduce",
                "Find the shortest way to reproduce the bug, and write it as a failing test.",
            ),
            TemplateTask(
                "fix",
                "builder",
                "Fix",
                "Fix the cause so that the test passes and no other behaviour changes.",
                ["reproduce"],
                True,
            ),
            TemplateTask("review", "reviewer", "Review", _REVIEW, ["fix"]),
        ],
    ),
    TaskTemplate(
        "refactor",
        "A refactoring: cover with tests, change, review.",
        [
            TemplateTask(
                "pin",
                "tester",
                "Cover with tests",
                "Make sure that tests detect a change of behaviour before any code is moved.",
            ),
            TemplateTask(
                "change", "builder", "Change", "Refactor the code in small steps.", ["pin"], True
            ),
            TemplateTask("review", "reviewer", "Review", _REVIEW, ["change"]),
        ],
    ),
    TaskTemplate(
        "docs",
        "User documentation: research, write, try.",
        [
            TemplateTask(
                "research",
                "researcher",
                "Research",
                "Find out what readers need to know, and note the source of each fact.",
            ),
            TemplateTask(
                "write", "writer", "Write", "Write the text as briefly as possible.", ["research"]
            ),
            TemplateTask(
                "try",
                "reviewer",
                "Try",
                "Follow the text step by step, and report every step that does not work.",
                ["write"],
            ),
        ],
    ),
)

TEMPLATES = {template.name: template for template in _ALL}
