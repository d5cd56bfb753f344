"""What every command shares: how results and progress are shown, and how options are read."""
