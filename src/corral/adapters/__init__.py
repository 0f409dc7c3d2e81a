"""The world outside. Each file speaks to one outside thing and knows no room."""
