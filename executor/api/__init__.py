"""CudaExecutor, what people import. Nothing is computed here."""
