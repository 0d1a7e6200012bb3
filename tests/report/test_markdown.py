from bagwise.report.markdown import markdown_table, results_caption, results_region, update_readme, update_region
from bagwise.report.summary import summarise
from fakes.records import make_record

RECORDS = [
    make_record("kl", 1, 0, accuracy=0.95),
    make_record("kl", 1, 1, accuracy=0.93),
    make_record("rot", 1, 0, accuracy=0.94),
    make_record("kl", 4, 0, accuracy=0.9),
]
SUMMARY = summarise(RECORDS, [1, 2, 4], ["kl", "rot"])


def test_the_table_has_means_spreads_dashes_and_no_row_without_a_record():
    assert markdown_table(SUMMARY) == (
        "| bag size | KL | ROT |\n| ---: | ---: | ---: |\n| 1 | 94.0 ± 1.4 | 94.0 |\n| 4 | 90.0 | – |"
    )


def test_the_caption_tells_how_many_seeds():
    assert "over the seeds that ran (1 to 2 a cell)" in results_caption(SUMMARY)
    assert "one seed" in results_caption(summarise(RECORDS[2:3], [1], ["rot"]))
    assert "over 2 seeds" in results_caption(summarise(RECORDS[:2], [1], ["kl"]))
    assert "CIFAR-10" in results_caption(SUMMARY)


def test_only_the_named_region_changes():
    text = "a\n<!-- results:x -->old<!-- /results -->\nb\n<!-- results:y -->\nkeep\n<!-- /results -->\n"
    updated = update_region(text, "x", r"new \1")
    assert updated == (
        "a\n<!-- results:x -->\nnew \\1\n<!-- /results -->\nb\n<!-- results:y -->\nkeep\n<!-- /results -->\n"
    )
    assert update_region(updated, "x", r"new \1") == updated
    assert update_region(text, "z", "new") is None


def test_a_file_without_the_region_is_left_alone(tmp_path):
    path = tmp_path / "README.md"
    assert update_readme(path, "cifar10", results_region(SUMMARY)) is False
    path.write_text("no region")
    assert update_readme(path, "cifar10", results_region(SUMMARY)) is False
    assert path.read_text() == "no region"
