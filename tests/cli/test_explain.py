"""`feedmux explain`: what a feed would do, for people and as JSON."""

from tests.cli.conftest import Site


def test_a_feed_that_would_be_opened(site: Site) -> None:
    found = site.json("explain", "shop.orders", "--pipeline", '[{"$match": {"a": 1}}]')
    assert found["refusal"] is None
    assert found["pipeline"] == '[{"$changeStream": {}}, {"$match": {"a": 1}}]'
    text = site.run("explain", "shop.orders", "--start", "earliest")
    assert text.returncode == 0
    assert found["stream_key"] not in text.stdout  # without the pipeline it is another stream
    assert "not read now" in text.stdout
    assert "oplog" in text.stdout


def test_a_feed_that_would_be_refused(site: Site) -> None:
    done = site.run("explain", "admin")
    assert done.returncode == 1
    assert "NAMESPACE_DENIED" in done.stdout
    other = site.run("explain", "shop.orders", "--pipeline", '[{"$match": {"$nonsense": 1}}]')
    assert other.returncode == 1
    assert "STAGE_NOT_ALLOWED" in other.stdout


def test_a_filter_that_hides_deletes_is_pointed_out(site: Site) -> None:
    for condition, is_told in (('{"fullDocument.status": "open"}', True), ('{"operationType": "insert"}', False)):
        text = site.run("explain", "shop.orders", "--pipeline", f'[{{"$match": {condition}}}]')
        assert ("hides deletes" in text.stdout) == is_told
