"""Methods of CudaExecutor (executor/executor.py), a class a theme, each on top of the one before. Nothing is computed here."""
