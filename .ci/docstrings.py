"""For `make docs`: docstrings say "Example:", which mkdocstrings knows as "Examples:"."""

import re

from griffe import Extension, Object


class Examples(Extension):
    """Rename the section while the sources are read."""

    def on_object(self, *, obj: Object, **kwargs: object) -> None:
        """Change the docstring of a module, class, function or attribute."""
        if obj.docstring:
            obj.docstring.value = re.sub(
                r"^Example:$", "Examples:", obj.docstring.value, flags=re.M
            )
