"""The published experiments beside the measured ones: their numbers as data, their tables and figures from whatever ran."""
