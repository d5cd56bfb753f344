"""A control loop: sensors, a mean in the cloud, and a command back to the very device that needs it."""
