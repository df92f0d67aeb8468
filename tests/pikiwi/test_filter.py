from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.pikiwi.commands import DATA_TYPES
from tidelog.pikiwi.errors import FilterError
from tidelog.pikiwi.filter import Filter, read_specs


def passes(spec: str, key: bytes | None = b"k", data_type: str = "string", op: str = "set", written: str = "") -> bool:
    return Filter.parse([spec]).passes(key, data_type, op, written)


def test_without_filters_everything_is_sent() -> None:
    chosen = Filter.parse()
    assert chosen.passes(b"any", "hash", "hset")
    assert chosen.passes(None, "unknown", "flushdb")


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("dev:*", [b"dev:", b"dev:1", b"dev:*"], [b"dev", b"x:dev:1", b""]),
        ("*", [b"", b"anything", b"\xff"], []),
        ("exact", [b"exact"], [b"exactly", b"inexact", b""]),
        ("a-b:c_d", [b"a-b:c_d"], [b"a-b:c_d2"]),
        ("user.1", [b"user.1", b"user_1", b"superuser-100"], [b"user1"]),  # a dot makes it an expression, searched for
        ("^user:[0-9]+$", [b"user:12"], [b"user:", b"xuser:1", b"user:12x"]),
        ("b*c", [b"bbbc", b"xcx", b"c"], [b"b"]),
        ("^ab*", [b"a", b"abb", b"ax"], [b"ba"]),
        ("a|^b", [b"xa", b"bx"], [b"xb"]),
        ("^.$", [b"x", "ж".encode(), b"\xff"], [b"xx", b"\xff\xfe"]),  # a character, or a byte that is none
        (r"^\w+$", [b"ab_1"], ["ж".encode()]),
        ("ключ", ["ключ".encode()], ["ключи".encode()]),
        ("a,b*", [b"a", b"b", b"bc"], [b"ab"]),
        (" a , ,b ", [b"a", b"b"], [b" a"]),
    ],
)
def test_key_patterns(pattern: str, matching: list[bytes], others: list[bytes]) -> None:
    for key in matching:
        assert passes(f"key={pattern}", key), key
        assert not Filter.parse([], [pattern]).passes(key, "string", "set"), key
    for key in others:
        assert not passes(f"key={pattern}", key), key
        assert Filter.parse([], [pattern]).passes(key, "string", "set"), key


def test_conditions_of_one_filter_must_all_hold_and_lists_need_one() -> None:
    spec = "key=dev:*;type=list,hash;action=rpush,hset"
    assert passes(spec, b"dev:1", "list", "rpush")
    assert passes(spec, b"dev:1", "hash", "hset")
    assert not passes(spec, b"prod:1", "list", "rpush")
    assert not passes(spec, b"dev:1", "set", "rpush")
    assert not passes(spec, b"dev:1", "list", "lpush")


def test_one_of_several_filters_is_enough() -> None:
    chosen = Filter.parse(["key=dev:*;type=list;action=lpush", "key=prod:*;type=set;action=sadd"])
    assert chosen.passes(b"dev:k", "list", "lpush")
    assert chosen.passes(b"prod:k", "set", "sadd")
    assert not chosen.passes(b"dev:k", "set", "sadd")
    assert not chosen.passes(b"other:k", "set", "sadd")


def test_names_of_fields_types_and_actions_have_no_case_and_types_may_be_plural() -> None:
    assert passes(" KEY = k ; Type=LISTS ; ACTION = RPush", b"k", "list", "rpush")


def test_a_field_that_is_repeated_adds_to_its_list() -> None:
    assert passes("key=a;key=b", b"a")
    assert passes("key=a;key=b", b"b")


def test_an_exclude_wins() -> None:
    chosen = Filter.parse(["key=user:*"], ["user:tmp:*,user:1"])
    assert chosen.passes(b"user:2", "string", "set")
    assert not chosen.passes(b"user:tmp:2", "string", "set")
    assert not chosen.passes(b"user:1", "string", "set")


@pytest.mark.parametrize("data_type", ["unknown", ""])
def test_a_type_that_is_not_known_passes_every_type_condition(data_type: str) -> None:
    assert passes("type=list", b"k", data_type, "del")
    assert not passes("key=other;type=list", b"k", data_type, "del")
    assert passes("type=unknown", b"k", data_type, "del")
    assert not passes("type=unknown", b"k", "list", "rpush")


def test_a_command_without_a_key_concerns_every_key() -> None:
    assert passes("key=dev:*", None, "unknown", "flushdb")
    assert Filter.parse([], ["*"]).passes(None, "unknown", "flushdb")
    assert passes("type=list", None, "unknown", "flushdb")
    assert not passes("action=set", None, "unknown", "flushdb")
    assert passes("key=dev:*;action=flushdb", None, "unknown", "flushdb")


def test_an_action_may_name_what_the_master_wrote_or_what_it_was_translated_to() -> None:
    assert passes("action=set", op="set", written="pksetexat")
    assert passes("action=pksetexat", op="set", written="pksetexat")
    assert not passes("action=pksetexat", op="set")


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("", "no condition"),
        (" ; ; ", "no condition"),
        ("foo=bar", 'unknown field "foo"'),
        ("key=a;tpye=list", 'unknown field "tpye"'),
        ("key=a;list", '"list" lacks its ='),
        ("key=", "key= is empty"),
        ("key= , ,", "key= is empty"),
        ("type=", "type= is empty"),
        ("action=,", "action= is empty"),
        ("type=lsit", 'no data type "lsit"; they are string, list'),
        ("action=rpsuh", 'no write command "rpsuh"; is it "rpush"?'),
        ("action=get", 'no write command "get"'),
        ("action=padding", "no write command"),
        ("key=[a", "no regular expression"),
        ("key=a(", "no regular expression"),
        ("key=**", "no regular expression"),
        ("key=a{1,2}", "open brace"),
    ],
)
def test_a_bad_filter_is_an_error_that_names_it(spec: str, why: str) -> None:
    with pytest.raises(FilterError) as error:
        Filter.parse(["key=fine", spec])
    assert why in str(error.value)
    assert f'filter "{spec}"' in str(error.value)


@pytest.mark.parametrize("exclude", ["", " , ", "[a", "x{1,"])
def test_a_bad_exclude_is_an_error_that_names_it(exclude: str) -> None:
    with pytest.raises(FilterError, match="exclude "):
        Filter.parse([], [exclude])


def test_a_value_without_an_equals_sign_is_a_file_of_filters(tmp_path: Path) -> None:
    file = tmp_path / "filters.conf"
    file.write_text("# the shop\n\n  key=shop:*  \nkey=user:*;type=hash\n", encoding="utf-8")
    assert read_specs(["key=a", str(file), "key=b"]) == ["key=a", "key=shop:*", "key=user:*;type=hash", "key=b"]


@pytest.mark.parametrize(
    ("text", "why"),
    [("# nothing\n", "none in it"), ("key=a\nother.conf\n", '"other.conf" is no filter')],
)
def test_a_file_of_filters_without_one_is_an_error(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "filters.conf"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(FilterError, match=why):
        read_specs([str(file)])


def test_a_file_of_filters_that_is_not_there_is_an_error() -> None:
    with pytest.raises(FilterError, match="cannot be read"):
        read_specs(["/nowhere/filters.conf"])


def test_actions_that_a_master_writes_otherwise_are_noted() -> None:
    assert Filter.parse(["action=set,incr"]).notes() == [
        "action=incr: a master writes incr as pksetexat, which has to be named"
    ]
    assert Filter.parse(["action=set,pksetexat"]).notes() == []


ALL = (b"",)


@pytest.mark.parametrize(
    ("specs", "types", "prefixes"),
    [
        ([], DATA_TYPES, ALL),
        (["key=dev:*"], DATA_TYPES, (b"dev:",)),
        (["key=dev:*,dev:1:*,prod"], DATA_TYPES, (b"dev:", b"prod")),
        (["key=dev:*", "type=list"], DATA_TYPES, ALL),
        (["type=list", "type=sets"], ("list", "set"), ALL),
        (["type=list;key=a*", "type=hash;key=b*"], ("list", "hash"), (b"a", b"b")),
        (["action=sadd,hset"], ("hash", "set"), ALL),
        (["action=del"], DATA_TYPES, ALL),
        (["type=list;action=sadd"], (), ALL),
        (["type=list;action=pexpireat"], ("list",), ALL),
        (["key=^user:[0-9]+$"], DATA_TYPES, (b"user:",)),
        (["key=^ab?c"], DATA_TYPES, (b"a",)),
        (["key=^ab*c"], DATA_TYPES, (b"a",)),
        (["key=^ab{0}c"], DATA_TYPES, (b"a",)),
        (["key=^ab+c"], DATA_TYPES, (b"ab",)),
        (["key=^a|b"], DATA_TYPES, ALL),
        (["key=user.*"], DATA_TYPES, ALL),
        (["key=*"], DATA_TYPES, ALL),
    ],
)
def test_what_a_snapshot_reader_may_leave_unread(
    specs: list[str], types: tuple[str, ...], prefixes: tuple[bytes, ...]
) -> None:
    chosen = Filter.parse(specs)
    assert chosen.types() == types
    assert chosen.prefixes() == prefixes


words = st.text("ab*.^$+?|", min_size=1, max_size=5)


@given(st.lists(words, min_size=1, max_size=4), st.text("ab", max_size=6))
def test_a_key_that_passes_has_one_of_the_prefixes(patterns: list[str], key: str) -> None:
    try:
        chosen = Filter.parse([f"key={','.join(patterns)}"])
    except FilterError:
        return
    if chosen.passes(key.encode(), "string", "set"):
        assert key.encode().startswith(chosen.prefixes())
