"""Durable state of subscriptions in Redis. Imports `core` only; the only package that imports redis."""
