"""Many sequences over one engine: which of them run, in which rows of a step, with which drafts, and what their callers see."""
