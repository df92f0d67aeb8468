"""The table of docs/protocol.md, made from the code: `python -m tests.wire.protocol_page` writes it anew."""

from pathlib import Path

from tidelog.wire.messages import APIS

PAGE = Path(__file__).parent.parent.parent / "docs" / "protocol.md"
BEGIN, END = "<!-- made by python -m tests.wire.protocol_page -->\n", "<!-- end -->\n"


def table() -> str:
    rows = ["| key | request | versions | flexible from |", "| --- | --- | --- | --- |"]
    for api in APIS.values():
        flexible = api.flexible_since if api.flexible_since <= api.max_version else "–"
        versions = f"{api.min_version}–{api.max_version}" if api.min_version < api.max_version else str(api.max_version)
        rows.append(f"| {api.key} | {api.name} | {versions} | {flexible} |")
    return "\n".join(rows) + "\n"


def page_with(table: str, page: str) -> str:
    before, rest = page.split(BEGIN)
    return before + BEGIN + table + END + rest.split(END)[1]


def main() -> None:
    PAGE.write_text(page_with(table(), PAGE.read_text()))


if __name__ == "__main__":
    main()
