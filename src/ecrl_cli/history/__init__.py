"""Pure functions over loaded records: loading, lineage, membership, timeline, divergence of two
runs.
"""
