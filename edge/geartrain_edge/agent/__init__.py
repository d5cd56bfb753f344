"""The agent: its configuration, its run from start to end, and the status that it reports."""
