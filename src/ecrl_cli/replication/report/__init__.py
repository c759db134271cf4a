"""The published experiments beside the measured ones: published numbers as data, tables and figures
from the runs at hand.
"""
