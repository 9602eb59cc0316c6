"""The HTTP edge: bytes of clients in and out. Only here do errors become HTTP."""
