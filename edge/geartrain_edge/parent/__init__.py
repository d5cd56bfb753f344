"""The parent of a device's agents: it follows the control lane, and has one process for each app."""
