"""Templates: the tasks that a usual piece of work has, as data."""

from collections.abc import Sequence

import msgspec

from corral.domain.tasks.model import Wanted


class Part(msgspec.Struct, frozen=True):
    """One task of a template."""

    key: str
    role: str
    title: str
    description: str
    depends_on: list[str] = []
    is_checked: bool = False
    """Whether it builds something that a check can accept."""


class Template(msgspec.Struct, frozen=True):
    name: str
    help: str
    parts: list[Part]

    def filled(
        self, *, key: str, title: str, depends_on: Sequence[str], check: str | None
    ) -> list[Wanted]:
        """Its tasks for one piece of work; those that need nothing else need `depends_on`."""
        return [
            Wanted(
                key=f"{key}/{part.key}",
                title=f"{part.title}: {title}",
                role=part.role,
                description=part.description,
                depends_on=[f"{key}/{need}" for need in part.depends_on] or [*depends_on],
                check=check if part.is_checked else None,
            )
            for part in self.parts
        ]


_REVIEW = "Try it, look for the input that breaks it, and say what must change. Change nothing."

_ALL = (
    Template(
        "feature",
        "Something new: plan, build, test, review, write down.",
        [
            Part(
                "plan",
                "planner",
                "Plan",
                "Say what is to be built, which files it touches, and how one sees that it works.",
            ),
            Part("build", "builder", "Build", "Build what the plan says.", ["plan"], True),
            Part(
                "test",
                "tester",
                "Test",
                "Write the tests that the plan's promises ask for, at their edges too.",
                ["plan"],
            ),
            Part("review", "reviewer", "Review", _REVIEW, ["build", "test"]),
            Part("docs", "writer", "Write down", "Tell users how to use it.", ["review"]),
        ],
    ),
    Template(
        "bugfix",
        "A fault: see it fail, fix it, review.",
        [
            Part(
                "reproduce",
                "debugger",
                "See it fail",
                "Find the shortest way to see the fault, as a test that fails.",
            ),
            Part(
                "fix",
                "builder",
                "Mend",
                "Mend the cause, so that the test passes and nothing else changes.",
                ["reproduce"],
                True,
            ),
            Part("review", "reviewer", "Review", _REVIEW, ["fix"]),
        ],
    ),
    Template(
        "refactor",
        "The same behaviour in a better shape: pin down, change, review.",
        [
            Part(
                "pin",
                "tester",
                "Pin down",
                "Make sure that tests tell when the behaviour changes, before anything is moved.",
            ),
            Part("change", "builder", "Change", "Change the shape in small steps.", ["pin"], True),
            Part("review", "reviewer", "Review", _REVIEW, ["change"]),
        ],
    ),
    Template(
        "docs",
        "Words for users: find out, write, try.",
        [
            Part(
                "research",
                "researcher",
                "Find out",
                "Find what readers need to know, and where each fact is from.",
            ),
            Part("write", "writer", "Write", "Write it, as short as it can be.", ["research"]),
            Part(
                "try",
                "reviewer",
                "Try",
                "Do what the text says, word by word, and report where it leads nowhere.",
                ["write"],
            ),
        ],
    ),
)

TEMPLATES = {template.name: template for template in _ALL}
