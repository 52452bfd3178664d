"""``python -m oxcart.cli``, for where the script is not on the path."""

from oxcart.cli import main

main()
