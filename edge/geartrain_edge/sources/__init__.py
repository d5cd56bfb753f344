"""The sources of a device: open splits, read in turn."""
