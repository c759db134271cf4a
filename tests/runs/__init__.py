"""Recorded run directories, made without torch: whole and good, for tests to spoil."""
