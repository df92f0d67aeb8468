from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    kRsyncMeta: _ClassVar[Type]
    kRsyncFile: _ClassVar[Type]

class StatusCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    kOk: _ClassVar[StatusCode]
    kErr: _ClassVar[StatusCode]
kRsyncMeta: Type
kRsyncFile: Type
kOk: StatusCode
kErr: StatusCode

class FileRequest(_message.Message):
    __slots__ = ("filename", "count", "offset")
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    filename: str
    count: int
    offset: int
    def __init__(self, filename: _Optional[str] = ..., count: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class RsyncRequest(_message.Message):
    __slots__ = ("type", "reader_index", "db_name", "slot_id", "file_req")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    READER_INDEX_FIELD_NUMBER: _ClassVar[int]
    DB_NAME_FIELD_NUMBER: _ClassVar[int]
    SLOT_ID_FIELD_NUMBER: _ClassVar[int]
    FILE_REQ_FIELD_NUMBER: _ClassVar[int]
    type: Type
    reader_index: int
    db_name: str
    slot_id: int
    file_req: FileRequest
    def __init__(self, type: _Optional[_Union[Type, str]] = ..., reader_index: _Optional[int] = ..., db_name: _Optional[str] = ..., slot_id: _Optional[int] = ..., file_req: _Optional[_Union[FileRequest, _Mapping]] = ...) -> None: ...

class MetaResponse(_message.Message):
    __slots__ = ("filenames",)
    FILENAMES_FIELD_NUMBER: _ClassVar[int]
    filenames: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, filenames: _Optional[_Iterable[str]] = ...) -> None: ...

class FileResponse(_message.Message):
    __slots__ = ("eof", "count", "offset", "data", "checksum", "filename")
    EOF_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    eof: int
    count: int
    offset: int
    data: bytes
    checksum: str
    filename: str
    def __init__(self, eof: _Optional[int] = ..., count: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., checksum: _Optional[str] = ..., filename: _Optional[str] = ...) -> None: ...

class RsyncResponse(_message.Message):
    __slots__ = ("type", "reader_index", "snapshot_uuid", "db_name", "slot_id", "code", "meta_resp", "file_resp")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    READER_INDEX_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_UUID_FIELD_NUMBER: _ClassVar[int]
    DB_NAME_FIELD_NUMBER: _ClassVar[int]
    SLOT_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    META_RESP_FIELD_NUMBER: _ClassVar[int]
    FILE_RESP_FIELD_NUMBER: _ClassVar[int]
    type: Type
    reader_index: int
    snapshot_uuid: str
    db_name: str
    slot_id: int
    code: StatusCode
    meta_resp: MetaResponse
    file_resp: FileResponse
    def __init__(self, type: _Optional[_Union[Type, str]] = ..., reader_index: _Optional[int] = ..., snapshot_uuid: _Optional[str] = ..., db_name: _Optional[str] = ..., slot_id: _Optional[int] = ..., code: _Optional[_Union[StatusCode, str]] = ..., meta_resp: _Optional[_Union[MetaResponse, _Mapping]] = ..., file_resp: _Optional[_Union[FileResponse, _Mapping]] = ...) -> None: ...
