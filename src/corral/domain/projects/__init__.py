"""Projects: the directories that agents work in."""
