"""Errors that a person can act on.

Every error that a user can cause is a :class:`UserError`: one line that says what is wrong and what to do. The
command line prints it and exits with status 2; no traceback is shown.
"""


class UserError(Exception):
    """A mistake in what the user gave us, told in one line: what is wrong, and what to do."""
