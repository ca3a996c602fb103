"""Code that all parts of headway share: files, tables, pictures, training, optional packages.

Nothing here knows about attention; from headway it imports only ``errors``.
"""
