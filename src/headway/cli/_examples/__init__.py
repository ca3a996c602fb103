"""The encodings of CONTRIBUTING.md, which ``headway new-encoding`` writes under another name."""
