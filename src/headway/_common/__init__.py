"""What the parts of headway share beneath: files, tables, pictures, training, optional packages.

Nothing here knows of attention: of headway it imports ``errors`` alone.
"""
