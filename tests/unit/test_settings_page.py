"""The page of settings is made from the source, and says something about each."""

from pathlib import Path

from kernel.settings import Settings
from kernel.settings_page import settings_page

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == settings_page(), "`make docs` makes it anew"


def test_every_setting_says_what_it_is_for() -> None:
    silent = [name for name, field in Settings.model_fields.items() if not (field.description or "").strip()]
    assert not silent, "a docstring below the field in kernel/settings.py"
    assert all(f"`STOCKGATE_{name.upper()}`" in settings_page() for name in Settings.model_fields)
