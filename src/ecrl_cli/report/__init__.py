"""Tables, figures and the page. Everything heavy (matplotlib, seaborn, pandas) stays in here, so that the command line starts in a blink."""
