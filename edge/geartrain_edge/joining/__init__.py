"""How a device gets a certificate, and another before that ends: short-lived processes and their files."""
