"""Tests of the pages: what they show is run, and where they lead is there."""
