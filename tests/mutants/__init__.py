"""Whether the tests notice a fault: small ones are put into the code, one at a time, and the tests
that run the line are run against each.
"""
