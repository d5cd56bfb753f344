"""The agent: its configuration, its life from start to end, and what it says of itself."""
