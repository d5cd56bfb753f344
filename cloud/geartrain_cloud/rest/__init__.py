"""REST as a contract: its routes, bodies, answers and roles, and the OpenAPI document made of them."""
