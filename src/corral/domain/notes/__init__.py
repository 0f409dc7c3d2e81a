"""What is remembered, for an agent, a project or everyone."""
