"""One file for each call, with what all calls share: authentication, encoding, status codes, TLS, health."""
