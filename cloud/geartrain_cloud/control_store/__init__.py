"""The control store: what is wanted of a platform and what was reported, in one SQLite file."""
