"""Scenario Router: the right preset, thinking and replica for each chat request."""

__version__ = "0.3.0"
