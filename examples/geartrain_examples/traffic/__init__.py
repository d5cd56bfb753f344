"""The traffic demo: cameras and loops of a city, over-speed, plates used twice, streets by the minute, and a map."""
