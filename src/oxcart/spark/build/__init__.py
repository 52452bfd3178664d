"""Silver and gold from bronze: what is out of date, and building it."""
