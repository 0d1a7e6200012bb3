"""`python -m bagwise`."""

from bagwise.cli import app

app(prog_name="bagwise")
