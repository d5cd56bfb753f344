"""Sensors: hourly statistics of real series, and the hours that stand out."""
