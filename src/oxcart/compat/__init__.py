"""The APIs of other packages on our engine. Their naming conventions stay in here."""
