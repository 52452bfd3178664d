"""The faces of other packages on our engine. Their ways of naming things stay in here."""
