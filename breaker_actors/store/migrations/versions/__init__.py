"""Numbered migrations; a file that has been released is never edited. In: a connection on the revision before. Out: the
schema of this revision, with its rows carried over.

Public: nothing; Alembic finds the revisions by their folder.
"""
