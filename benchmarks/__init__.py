"""What is timed, and against whom. Results are JSON files in results/, each with the machine it came from."""
