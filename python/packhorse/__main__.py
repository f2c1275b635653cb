"""`python -m packhorse` is `packhorse`."""

from packhorse._launch import packhorse

packhorse()
