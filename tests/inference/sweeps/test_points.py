from reflectune.inference.sweeps.points import START, GridSettings, Point, expand, problems

PROBLEMS = (
    "list of values",
    "gama",
    "`best`",
    "`top_n` must",
    "`k` must be auto",
    "`mct` should be",
    "`ret` should be",
)
GRID = {"gamma": [0.0, 0.5], "mct": ["none", "filter", "merge"]}
HOME = {"gamma": 0.5, "mct": "filter"}


def test_one_setting_at_a_time_keeps_the_others_at_home() -> None:
    assert expand(GRID, HOME, product=False) == [
        Point(START, HOME),
        Point("gamma=0.0", {"gamma": 0.0, "mct": "filter"}),
        Point("mct=none", {"gamma": 0.5, "mct": "none"}),
        Point("mct=merge", {"gamma": 0.5, "mct": "merge"}),
    ]


def test_a_product_has_every_combination_once() -> None:
    points = expand(GRID, HOME, product=True)
    assert len(points) == 6
    assert {(p.settings["gamma"], p.settings["mct"]) for p in points} == {
        (gamma, mct) for gamma in GRID["gamma"] for mct in GRID["mct"]
    }
    assert points[0] == Point(START, HOME)


def test_points_that_differ_in_the_ranking_alone_share_a_run() -> None:
    first, second = (Point(name, {"top_n": 5, "ranking": name}) for name in ("ans", "rel"))
    assert first.run_key == second.run_key != Point("x", {"top_n": 3, "ranking": "ans"}).run_key
    assert (first.ranking, Point("y").ranking) == ("ans", "")


def test_a_point_changes_the_config_where_it_says_so() -> None:
    config = Point("p", {"k": "auto", "gamma": 0.9, "ranking": "rel"}).config(GridSettings(k=3))
    assert (config.k, config.gamma, config.top_n) == ("auto", 0.9, 5)


def test_a_bad_grid_is_told_whole() -> None:
    grid = {"gamma": 0.5, "gama": [1], "ranking": ["best"], "top_n": [1, 0], "k": ["many"], "mct": ["sort"], "ret": [1]}
    issues = problems(grid, GridSettings())
    assert len(issues) == 7
    for issue, text in zip(issues, PROBLEMS, strict=True):
        assert text in issue
