"""The tables of a day for people: a page, a picture and text."""
