"""A user's package, of which the tests host flows: they copy it, and call it `mill`."""
