"""A call that has to raise: what the programs of this folder share."""


def refused(kind, call, *args, text="", **kwargs):
    """Makes a call that has to raise `kind` with `text` in its message, and returns the exception."""
    try:
        call(*args, **kwargs)
    except kind as error:
        assert text in str(error), (text, str(error))
        return error
    raise AssertionError(f"not refused: {call} of {args}; {text}")
