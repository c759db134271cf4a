"""Verification: one function per promise, each of which can fail."""
