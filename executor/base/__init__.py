"""What every room stands on: errors, checks of arguments, the environment, the cache on disk."""
