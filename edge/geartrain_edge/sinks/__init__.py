"""The sinks of a device: records handed over after the commit that holds them."""
