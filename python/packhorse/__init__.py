"""Packhorse for Python."""
