"""A step as a graph: operations over values, rules that fuse them, and how they become launches."""
