"""A file for each call or for the calls of a service, and what they share: authentication, encoding, status codes, TLS
and health."""
