"""The control lane: what the platform wants of a device and what the device reports, without I/O."""
