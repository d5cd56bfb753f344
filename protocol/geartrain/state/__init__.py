"""What a step remembers: one typed value for each key, and records held until the watermark passes them."""
