"""What a newcomer gets: models by their defaults on development tables, beside scikit-learn, LightGBM, a constant."""
