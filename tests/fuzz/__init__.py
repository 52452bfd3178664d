"""Fuzzing (`make fuzz`): scripts, codecs, commands, pages and reports on what a hostile peer would leave."""
