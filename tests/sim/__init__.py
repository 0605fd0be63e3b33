"""Seeded simulation of the whole service: real parts, virtual time, injected faults, invariants after each step."""
