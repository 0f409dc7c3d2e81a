"""The recorded screens of agent CLIs."""

from pathlib import Path

SCREEN_FILES = Path(__file__).parents[1] / "fixtures" / "providers" / "screens"
