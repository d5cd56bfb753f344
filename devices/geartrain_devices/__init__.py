"""Where records are born: sources that replay files, simulate sensors or drive hardware."""
