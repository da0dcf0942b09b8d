"""Which kernel is used, and why: the profile, what was measured, and what a user has chosen.
The tables that are shipped are the JSON files here."""
