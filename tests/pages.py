"""Links and headings of pages in Markdown."""

import re
from functools import cache


def prose(path):
    """Return the text of a page without blocks and spans of code."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


@cache
def anchors(path):
    """Return the anchors of the headings of a page, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


def links(path):
    """Return the links of a page to files, as file, which is empty for the page itself, and anchor."""
    found = (target for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)) if ":" not in target)
    return [tuple(target.partition("#")[::2]) for target in found]
