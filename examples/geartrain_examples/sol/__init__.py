"""Speed of light: how fast records go through steps that do nothing."""
