"""Configuration: one TOML or YAML file, then environment variables `FEEDMUX_…` (`__` between levels).

Only modules above `config` in the layers import it (ARCHITECTURE.md); they hand plain values down. The description of
every tunable names its trade-off. `python -m tests.reference.pages` writes docs/reference/configuration.md from here.
"""
