"""Numbered migrations; a file that has been released is never edited."""
