"""The program `tealight`, started by `python -m tealight_cli`."""
