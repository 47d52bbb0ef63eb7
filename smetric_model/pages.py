"""HTML pages that need nothing else: one set of styles, one way to fill a template.

Templates in ``templates/`` extend ``page.html.j2``, which has the styles that all pages share.
"""

from __future__ import annotations

from typing import Any

__all__ = ["filled_page"]


def filled_page(template: str, **values: Any) -> str:
    """Fill a template.

    Parameters
    ----------
    template : str
        Its file's name in ``templates/``.
    **values
        What the template names, but for ``colours``: :data:`smetric_model.colours.COLOURS`.

    Returns
    -------
    str
        HTML that loads nothing, runs nothing, and follows the reader's light or dark setting.
        Values are escaped; a ``markupsafe.Markup`` is not.

    Raises
    ------
    jinja2.UndefinedError
        If the template names a value that is not given.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from smetric_model.colours import COLOURS

    environment = Environment(
        loader=PackageLoader("smetric_model"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(colours=COLOURS, **values)
