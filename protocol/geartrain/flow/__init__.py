"""The faces of a flow: fluent streams, and graphs of processors."""
