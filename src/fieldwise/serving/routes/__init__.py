"""The routes of the HTTP application, one router a file; each is made by `router(served)`."""
