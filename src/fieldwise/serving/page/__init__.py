"""Data of the server's page: fields, users and items to choose from."""
