"""Raw tables from files, public data sets and the simulated log."""
