"""Models with default settings on development tables, compared with scikit-learn, LightGBM and a constant."""
