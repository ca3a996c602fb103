"""One voice for everything that can be wrong: what, the values, the remedy."""


class HeadwayError(ValueError):
    """An input headway cannot work with; the message is one line: what, the values, the remedy."""
