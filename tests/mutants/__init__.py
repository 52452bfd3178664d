"""Small faults put into copies of the source, to prove that the tests of docs/conformance.md notice them."""
