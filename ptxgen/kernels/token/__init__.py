"""Between token ids and numbers: looking up embeddings, choosing the next token."""
