"""Tools that use the product from outside and say what a change is worth."""
