"""How often a table is read as its maker meant it: tables with planted answers (tests/data/test_infer.py)."""
