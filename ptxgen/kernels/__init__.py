"""The catalogue: a folder for each family. Nothing is imported here; the registry finds what is there."""
