"""Tables, figures and the page. Everything heavy (matplotlib, seaborn, pandas) stays in here, so that the command line starts in a blink."""

import logging

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # before it is imported: a font or a cache folder that it lacks is no news to the user
