"""`python -m holdfast` is the `holdfast` command."""

from __future__ import annotations

from holdfast.cli import main

if __name__ == "__main__":
    main()
