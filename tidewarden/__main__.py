"""``python -m tidewarden``, the same as the ``tidewarden`` command."""

from tidewarden.cli import main

if __name__ == "__main__":
    main()
