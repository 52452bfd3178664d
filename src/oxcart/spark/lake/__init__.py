"""The tables on disk: versions of all of them, and what writes, reads and tidies their files."""
