"""The encodings of docs/extending.md, which ``headway new-encoding`` writes under another name."""
