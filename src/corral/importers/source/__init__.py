"""Reading of other tools' SQLite files, whose content is untrusted."""
