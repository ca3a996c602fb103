"""Reports: one HTML page that shows the attention of all heads and needs no network."""

from ._report import Head as Head
from ._report import Offsets as Offsets
from ._report import Options as Options
from ._report import Text as Text
from ._report import compare_reports as compare_reports
from ._report import live_widget as live_widget
from ._report import reported as reported
from ._report import write as write
