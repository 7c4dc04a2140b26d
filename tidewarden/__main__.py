"""``python -m tidewarden``, the same as the ``tidewarden`` command."""

from .cli import main

if __name__ == "__main__":
    main()
