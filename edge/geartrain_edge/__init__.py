"""The agent on a device: sources, then the flow's edge fragment, then the durable spool and its uplink."""
