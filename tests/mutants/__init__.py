"""Small faults in copies of the source, which prove that the tests of docs/conformance.md find them."""
