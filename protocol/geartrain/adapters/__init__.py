"""Production forms of the ports that agent and ingest share: the only modules of this package with effects."""
