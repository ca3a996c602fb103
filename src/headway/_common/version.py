"""The version of headway, also of its package."""

__version__ = "0.1.0"


def version_line() -> str:
    """Returns the versions of headway, torch and Python."""
    import platform

    import torch

    return f"headway {__version__}, torch {torch.__version__}, Python {platform.python_version()}"
