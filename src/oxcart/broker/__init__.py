"""Stores jobs and moves them between states."""
