"""Renders chat templates in a process of its own, which chat.py starts. Imports the standard library and Jinja2 alone, so that
the process is there at once."""
