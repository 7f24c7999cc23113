"""The sample of `feedmux serve --print-sample-config`."""

import re
import tomllib

from feedmux_server.config.load import make_config
from feedmux_server.config.sample import sample_config
from feedmux_server.config.sections import LimitsSection
from feedmux_server.config.server import Config


def test_the_sample_is_a_configuration_with_every_option() -> None:
    sample = sample_config()
    config = make_config(tomllib.loads(sample))
    assert config.limits == LimitsSection()
    uncommented = re.sub(r"^# (?=\w+ = |\[)", "", sample, flags=re.MULTILINE)
    full = tomllib.loads(uncommented)
    assert set(full["limits"]) == set(LimitsSection.model_fields)
    assert set(full) == set(Config.model_fields)
