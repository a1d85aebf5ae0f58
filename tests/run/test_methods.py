from adagp.run import METHODS
from adagp.schedules import parse_schedule
from adagp.sources import SOURCES


def test_every_method_names_a_source_and_a_schedule_that_exist() -> None:
    assert {"bp", "adagp", "remap"} <= set(METHODS)
    for name in METHODS:
        method = METHODS[name]
        assert method.name == name
        schedule = parse_schedule(method.ratio, epochs=20, source=method.source or "")
        assert schedule.sources == ({method.source} if method.source else set())
        assert schedule.sources <= set(SOURCES)
