"""Arithmetic: one contract, one reference, one implementation per processor."""
