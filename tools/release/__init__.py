"""The checks of a release: its files, clean environments of every Python, licences, advisories and the SBOM.

`make release-check` runs all of them. It installs its tools into an environment of their own
(`requirements.lock`), and publishes nothing.
"""
