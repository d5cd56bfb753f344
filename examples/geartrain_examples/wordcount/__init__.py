"""Word count: the flow that everybody writes first."""
