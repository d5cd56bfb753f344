"""The operators: one file each, the meaning of a step apart from where it runs."""
