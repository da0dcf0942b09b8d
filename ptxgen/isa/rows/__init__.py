"""The rows of the instruction table, a file a family."""
