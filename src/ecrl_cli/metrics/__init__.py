"""Measurements: goodput, checkpoint account, recoveries, statistics, quality gates."""
