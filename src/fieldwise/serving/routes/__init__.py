"""The routes of the HTTP application, one router per file; each is created by `router(served)`."""
