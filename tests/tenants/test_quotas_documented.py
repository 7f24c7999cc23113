"""docs/tenants.md names every quota with its default."""

from pathlib import Path

from feedmux_server.config import QuotaSection

GUIDE = Path(__file__).parents[2] / "docs" / "tenants.md"


def test_every_quota_is_documented_with_its_default() -> None:
    text = GUIDE.read_text()
    for name, field in QuotaSection.model_fields.items():
        assert f"| `{name}` | {field.default:,} | {field.description} |" in text
