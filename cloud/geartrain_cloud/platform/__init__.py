"""A platform as all of its processes know it: its configuration, and where everything lies."""
