"""Whether a function is right before it is text: types, control flow, barriers in divergent code."""
