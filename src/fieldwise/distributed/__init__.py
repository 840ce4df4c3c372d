"""Several processes that train one network together: who they are, what they exchange, how they are started."""
