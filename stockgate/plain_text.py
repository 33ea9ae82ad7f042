"""Text that came from outside, made fit for a terminal: nothing in it moves the cursor or colours what follows."""

from rich.text import Text


def plain(value: object, style: str = "") -> Text:
    """A value as one line without markup; what cannot be printed is written as an escape."""
    text = str(value)
    if not text.isprintable():
        text = "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
    return Text(text, style)
