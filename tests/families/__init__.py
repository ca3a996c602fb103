"""The architectures of transformers whose attention goes through its interface: headway against eager attention."""
