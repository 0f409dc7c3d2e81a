"""Tasks: a project's dependency graph, and the lifecycle, review and delegation of its tasks."""
