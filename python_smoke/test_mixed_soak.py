"""The soak run of mixed work, some seconds of it: its samples, its verdict and its plot."""

import json
from xml.etree import ElementTree

import pytest
from harness import run_python
from mixed_soak import samples

pytestmark = pytest.mark.arena


def test_some_seconds_of_it(tmp_path):
    run = run_python("-m", "mixed_soak", "--minutes", "0.2", "--every", "4", "--out", str(tmp_path / "soak"))
    lines = (tmp_path / "soak.jsonl").read_text().splitlines()
    seen = [json.loads(line) for line in lines]
    assert seen[-1]["seconds"] >= 12 and {str(sample["books"]) for sample in seen} == {str([[0, 0, 0]] * 4)}, run.stdout
    assert ElementTree.fromstring((tmp_path / "soak.svg").read_text()).tag.endswith("svg")


def test_the_verdict_sees_memory_that_grows_and_books_that_do_not_balance():
    def made(growth, books=0):
        return [
            {"seconds": 10.0 * n, "resident": (1000 + growth * n) << 20, "books": [[books * n, 0, 0]]}
            for n in range(361)
        ]

    assert samples.verdict(made(0))[0] == []
    assert "at most 2%" in samples.verdict(made(1))[0][0]
    assert "the books were" in samples.verdict(made(0, books=1))[0][0]
