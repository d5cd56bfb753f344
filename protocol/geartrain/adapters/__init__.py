"""Production forms of the ports that agent and ingest share: this package's only modules with effects."""
