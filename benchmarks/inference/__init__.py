"""How often a table is read as its maker meant it: tables with planted answers, and public ones under other names."""
