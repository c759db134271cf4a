"""Tables, figures and the report page. matplotlib, seaborn and pandas are imported only in here, so
that the command line starts fast.
"""

import logging

# before it is imported: users need no warnings about missing fonts or cache folders
logging.getLogger("matplotlib").setLevel(logging.ERROR)
