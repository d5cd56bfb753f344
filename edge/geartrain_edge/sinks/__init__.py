"""The sinks of a device: they get records after the commit that holds them."""
