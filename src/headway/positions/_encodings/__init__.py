"""The encodings, one file for each; ``headway.positions`` has their classes."""
