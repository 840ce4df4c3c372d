"""What the server's page shows: fields, users and items to choose from."""
