"""The instructions of PTX, a row each: text, operands, types, what it needs and what it means."""
