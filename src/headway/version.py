"""The version of headway, also of its package."""

__version__ = "0.1.0"
