"""The command line of Geartrain: runs and plans flows here, and drives a platform over REST."""
