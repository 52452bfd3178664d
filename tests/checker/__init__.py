"""A history checker: clients write what they were told, a nemesis breaks things, and invariants must hold.

`make checker` runs it. The parts: `plan` (what is added), `crews` and `program` (workers), `producers`,
`nemesis` (faults), `record` (what clients wrote), `final` (the state of the server at the end), `invariants`,
`rounds`, `shrinker` and `report`. `docs/checker.md` describes it.
"""
