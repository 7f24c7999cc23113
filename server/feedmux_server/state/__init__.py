"""Durable state of subscriptions in Redis. The only package that imports redis."""
