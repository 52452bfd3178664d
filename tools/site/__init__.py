"""The documentation site: stages its pages, generates the reference, and checks the built pages.

`python -m tools.site` writes the source of the site into `build/site`. `make docs` runs it and then the
generator, which has an environment of its own. `python -m tools.site check` reads the built pages.
"""
