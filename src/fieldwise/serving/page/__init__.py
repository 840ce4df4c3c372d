"""The server's page: what it shows and the routes that serve it."""
