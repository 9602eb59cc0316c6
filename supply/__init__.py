"""What the router is made of: a bill of it, and whether somebody knows a fault of a part."""
