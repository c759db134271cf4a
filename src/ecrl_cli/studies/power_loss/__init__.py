"""The states that a power loss may leave: every legal state of a disk in memory, and shutdowns of
real file systems.
"""
