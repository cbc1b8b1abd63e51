"""The words that numbers and lists become, beyond what the docstrings' examples show."""

from __future__ import annotations

from ckptcheck.text.formatting import count, format_bytes, format_ranges, join_truncated, join_words, natural_sort_key


def test_a_list_is_cut_only_where_it_is_longer() -> None:
    assert join_truncated(["c", "a", "b"], most=3) == "a, b, c"
    assert join_truncated(["c", "a", "b", "d"], most=3) == "a, b, c and 1 more"
    assert join_truncated([]) == ""


def test_an_empty_name_is_visible() -> None:
    assert join_truncated(["", "a"]) == '"", a'


def test_words_are_joined_as_in_a_sentence() -> None:
    assert join_words([]) == ""
    assert join_words(["a", "b", "c", "d"]) == "a, b, c and d"


def test_ranges_are_sorted_and_each_number_stands_once() -> None:
    assert format_ranges([5, 1, 2, 2, 3]) == "1-3,5"
    assert format_ranges([]) == ""
    assert format_ranges(range(0, 10, 2), most=1) == "0 and 4 more"


def test_one_is_singular_and_none_is_plural() -> None:
    assert [count(number, "shard") for number in (0, 1, 2)] == ["0 shards", "1 shard", "2 shards"]


def test_a_unit_changes_before_four_digits_are_shown() -> None:
    assert format_bytes(0) == "0 bytes"
    assert format_bytes(1) == "1 byte"
    assert format_bytes(999_600) == "1 MB"
    assert format_bytes(10**19) == "1e+04 PB"


def test_numbers_sort_before_words() -> None:
    assert sorted(["a.b", "a.10", "a.9"], key=natural_sort_key) == ["a.9", "a.10", "a.b"]
