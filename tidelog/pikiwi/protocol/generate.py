"""`python -m tidelog.pikiwi.protocol.generate [FOLDER]`: the `_pb2` modules from the `.proto` files, into the sources.

Needs grpcio-tools, which only whoever changes a `.proto` file has to have. tests/pikiwi/test_protocol.py generates
again and compares.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROTOS = ("tidelog/pikiwi/protocol/inner_message.proto", "tidelog/pikiwi/protocol/rsync_service.proto")


def generate(folder: Path) -> None:
    from grpc_tools import protoc  # noqa: PLC0415 - a tool, not a dependency

    arguments = ["protoc", f"-I{ROOT}", f"--python_out={folder}", f"--pyi_out={folder}", *PROTOS]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc refused; it has said why")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
