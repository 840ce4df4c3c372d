"""Elements of SVG drawings, with colours from the page's style sheet for light and dark mode.

A chart is about 320 units wide, narrower than a phone, so that its text stays readable there; a wide page shows
several side by side. Elements are built as a tree, which escapes all text and values.
"""

from xml.etree import ElementTree

from markupsafe import Markup

__all__ = ["COLOURS", "LEGEND_LINE", "TOP", "WIDTH", "add", "add_text", "colour_class", "markup", "rounded", "svg_root"]

COLOURS = 6  # classes c0, c1, ... of the style sheet
WIDTH = 320.0
TOP = 10.0
LEGEND_LINE = 17.0


def colour_class(number: int) -> str:
    """The class of a line's colour; numbers after the first `COLOURS` repeat them, dashed."""
    return f"c{number % COLOURS}" + (" dashed" if number >= COLOURS else "")


def svg_root(width: float, height: float, title: str | None) -> ElementTree.Element:
    """A drawing's root; without a title it is hidden from screen readers."""
    svg = ElementTree.Element("svg", viewBox=f"0 0 {rounded(width)} {rounded(height)}")
    if title is None:
        svg.set("class", "cell")
        svg.set("aria-hidden", "true")  # its numbers are in the next cell
    else:
        svg.set("role", "img")
        svg.set("aria-label", title)
    return svg


def add(svg: ElementTree.Element, tag: str, style: str, **places: float | str) -> ElementTree.Element:
    """Append an element of class `style`, and return it."""
    attributes = {name: value if isinstance(value, str) else rounded(value) for name, value in places.items()}
    return ElementTree.SubElement(svg, tag, {"class": style, **attributes})


def add_text(
    svg: ElementTree.Element, x: float, y: float, text: str, style: str, anchor: str = "start"
) -> ElementTree.Element:
    """Append text at a point, and return its element."""
    found = add(svg, "text", style, x=x, y=y, **{"text-anchor": anchor})
    found.text = text
    return found


def rounded(value: float) -> str:
    """A coordinate with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def markup(svg: ElementTree.Element) -> Markup:
    """The drawing as text for a page."""
    return Markup(ElementTree.tostring(svg, encoding="unicode"))
