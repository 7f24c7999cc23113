"""How a configuration fails."""


class ConfigError(Exception):
    """The configuration cannot be used; the message names the file, the field and the reason."""


class FileUnreadable(ConfigError):
    """A file that the configuration names cannot be read now; a later attempt may succeed."""
