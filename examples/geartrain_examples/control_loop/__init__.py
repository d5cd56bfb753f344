"""A control loop: sensors, a mean in the cloud, and a command back to the device that needs it."""
