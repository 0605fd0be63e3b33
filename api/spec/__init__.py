"""The description of the interface: one table of operations over typed bodies, made into OpenAPI 3.1 and a page."""
