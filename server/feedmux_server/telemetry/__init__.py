"""Logs, metrics, traces, audit."""
