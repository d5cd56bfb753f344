"""What a step keeps of the records of a key or of a window, and how records are taken into it."""
