"""The device's own program as it comes over the air: which one runs, and how it is started."""
