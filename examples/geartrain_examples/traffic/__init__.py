"""The traffic demo: cameras and loops of a city, who drives too fast, and how its streets are, on a map."""
