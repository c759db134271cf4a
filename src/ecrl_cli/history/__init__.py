"""Pure folds over records: what was loaded, which attempt covers which step, where the time went, how two runs differ."""
