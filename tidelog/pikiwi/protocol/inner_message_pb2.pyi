from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    kMetaSync: _ClassVar[Type]
    kTrySync: _ClassVar[Type]
    kDBSync: _ClassVar[Type]
    kBinlogSync: _ClassVar[Type]
    kHeatBeat: _ClassVar[Type]
    kRemoveSlaveNode: _ClassVar[Type]

class StatusCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    kOk: _ClassVar[StatusCode]
    kError: _ClassVar[StatusCode]
    kOther: _ClassVar[StatusCode]
kMetaSync: Type
kTrySync: Type
kDBSync: Type
kBinlogSync: Type
kHeatBeat: Type
kRemoveSlaveNode: Type
kOk: StatusCode
kError: StatusCode
kOther: StatusCode

class BinlogOffset(_message.Message):
    __slots__ = ("filenum", "offset", "term", "index")
    FILENUM_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    filenum: int
    offset: int
    term: int
    index: int
    def __init__(self, filenum: _Optional[int] = ..., offset: _Optional[int] = ..., term: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("ip", "port")
    IP_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    ip: str
    port: int
    def __init__(self, ip: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class Slot(_message.Message):
    __slots__ = ("db_name", "slot_id")
    DB_NAME_FIELD_NUMBER: _ClassVar[int]
    SLOT_ID_FIELD_NUMBER: _ClassVar[int]
    db_name: str
    slot_id: int
    def __init__(self, db_name: _Optional[str] = ..., slot_id: _Optional[int] = ...) -> None: ...

class InnerRequest(_message.Message):
    __slots__ = ("type", "meta_sync", "try_sync", "db_sync", "binlog_sync", "remove_slave_node")
    class MetaSync(_message.Message):
        __slots__ = ("node", "auth")
        NODE_FIELD_NUMBER: _ClassVar[int]
        AUTH_FIELD_NUMBER: _ClassVar[int]
        node: Node
        auth: str
        def __init__(self, node: _Optional[_Union[Node, _Mapping]] = ..., auth: _Optional[str] = ...) -> None: ...
    class TrySync(_message.Message):
        __slots__ = ("node", "slot", "binlog_offset")
        NODE_FIELD_NUMBER: _ClassVar[int]
        SLOT_FIELD_NUMBER: _ClassVar[int]
        BINLOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
        node: Node
        slot: Slot
        binlog_offset: BinlogOffset
        def __init__(self, node: _Optional[_Union[Node, _Mapping]] = ..., slot: _Optional[_Union[Slot, _Mapping]] = ..., binlog_offset: _Optional[_Union[BinlogOffset, _Mapping]] = ...) -> None: ...
    class DBSync(_message.Message):
        __slots__ = ("node", "slot", "binlog_offset")
        NODE_FIELD_NUMBER: _ClassVar[int]
        SLOT_FIELD_NUMBER: _ClassVar[int]
        BINLOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
        node: Node
        slot: Slot
        binlog_offset: BinlogOffset
        def __init__(self, node: _Optional[_Union[Node, _Mapping]] = ..., slot: _Optional[_Union[Slot, _Mapping]] = ..., binlog_offset: _Optional[_Union[BinlogOffset, _Mapping]] = ...) -> None: ...
    class BinlogSync(_message.Message):
        __slots__ = ("node", "db_name", "slot_id", "ack_range_start", "ack_range_end", "session_id", "first_send")
        NODE_FIELD_NUMBER: _ClassVar[int]
        DB_NAME_FIELD_NUMBER: _ClassVar[int]
        SLOT_ID_FIELD_NUMBER: _ClassVar[int]
        ACK_RANGE_START_FIELD_NUMBER: _ClassVar[int]
        ACK_RANGE_END_FIELD_NUMBER: _ClassVar[int]
        SESSION_ID_FIELD_NUMBER: _ClassVar[int]
        FIRST_SEND_FIELD_NUMBER: _ClassVar[int]
        node: Node
        db_name: str
        slot_id: int
        ack_range_start: BinlogOffset
        ack_range_end: BinlogOffset
        session_id: int
        first_send: bool
        def __init__(self, node: _Optional[_Union[Node, _Mapping]] = ..., db_name: _Optional[str] = ..., slot_id: _Optional[int] = ..., ack_range_start: _Optional[_Union[BinlogOffset, _Mapping]] = ..., ack_range_end: _Optional[_Union[BinlogOffset, _Mapping]] = ..., session_id: _Optional[int] = ..., first_send: _Optional[bool] = ...) -> None: ...
    class RemoveSlaveNode(_message.Message):
        __slots__ = ("node", "slot")
        NODE_FIELD_NUMBER: _ClassVar[int]
        SLOT_FIELD_NUMBER: _ClassVar[int]
        node: Node
        slot: Slot
        def __init__(self, node: _Optional[_Union[Node, _Mapping]] = ..., slot: _Optional[_Union[Slot, _Mapping]] = ...) -> None: ...
    TYPE_FIELD_NUMBER: _ClassVar[int]
    META_SYNC_FIELD_NUMBER: _ClassVar[int]
    TRY_SYNC_FIELD_NUMBER: _ClassVar[int]
    DB_SYNC_FIELD_NUMBER: _ClassVar[int]
    BINLOG_SYNC_FIELD_NUMBER: _ClassVar[int]
    REMOVE_SLAVE_NODE_FIELD_NUMBER: _ClassVar[int]
    type: Type
    meta_sync: InnerRequest.MetaSync
    try_sync: InnerRequest.TrySync
    db_sync: InnerRequest.DBSync
    binlog_sync: InnerRequest.BinlogSync
    remove_slave_node: _containers.RepeatedCompositeFieldContainer[InnerRequest.RemoveSlaveNode]
    def __init__(self, type: _Optional[_Union[Type, str]] = ..., meta_sync: _Optional[_Union[InnerRequest.MetaSync, _Mapping]] = ..., try_sync: _Optional[_Union[InnerRequest.TrySync, _Mapping]] = ..., db_sync: _Optional[_Union[InnerRequest.DBSync, _Mapping]] = ..., binlog_sync: _Optional[_Union[InnerRequest.BinlogSync, _Mapping]] = ..., remove_slave_node: _Optional[_Iterable[_Union[InnerRequest.RemoveSlaveNode, _Mapping]]] = ...) -> None: ...

class InnerResponse(_message.Message):
    __slots__ = ("type", "code", "reply", "meta_sync", "db_sync", "try_sync", "binlog_sync", "remove_slave_node")
    class MetaSync(_message.Message):
        __slots__ = ("classic_mode", "dbs_info", "run_id", "replication_id")
        class DBInfo(_message.Message):
            __slots__ = ("db_name", "slot_num", "db_instance_num")
            DB_NAME_FIELD_NUMBER: _ClassVar[int]
            SLOT_NUM_FIELD_NUMBER: _ClassVar[int]
            DB_INSTANCE_NUM_FIELD_NUMBER: _ClassVar[int]
            db_name: str
            slot_num: int
            db_instance_num: int
            def __init__(self, db_name: _Optional[str] = ..., slot_num: _Optional[int] = ..., db_instance_num: _Optional[int] = ...) -> None: ...
        CLASSIC_MODE_FIELD_NUMBER: _ClassVar[int]
        DBS_INFO_FIELD_NUMBER: _ClassVar[int]
        RUN_ID_FIELD_NUMBER: _ClassVar[int]
        REPLICATION_ID_FIELD_NUMBER: _ClassVar[int]
        classic_mode: bool
        dbs_info: _containers.RepeatedCompositeFieldContainer[InnerResponse.MetaSync.DBInfo]
        run_id: str
        replication_id: str
        def __init__(self, classic_mode: _Optional[bool] = ..., dbs_info: _Optional[_Iterable[_Union[InnerResponse.MetaSync.DBInfo, _Mapping]]] = ..., run_id: _Optional[str] = ..., replication_id: _Optional[str] = ...) -> None: ...
    class TrySync(_message.Message):
        __slots__ = ("reply_code", "slot", "binlog_offset", "session_id")
        class ReplyCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
            __slots__ = ()
            kOk: _ClassVar[InnerResponse.TrySync.ReplyCode]
            kSyncPointBePurged: _ClassVar[InnerResponse.TrySync.ReplyCode]
            kSyncPointLarger: _ClassVar[InnerResponse.TrySync.ReplyCode]
            kError: _ClassVar[InnerResponse.TrySync.ReplyCode]
        kOk: InnerResponse.TrySync.ReplyCode
        kSyncPointBePurged: InnerResponse.TrySync.ReplyCode
        kSyncPointLarger: InnerResponse.TrySync.ReplyCode
        kError: InnerResponse.TrySync.ReplyCode
        REPLY_CODE_FIELD_NUMBER: _ClassVar[int]
        SLOT_FIELD_NUMBER: _ClassVar[int]
        BINLOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
        SESSION_ID_FIELD_NUMBER: _ClassVar[int]
        reply_code: InnerResponse.TrySync.ReplyCode
        slot: Slot
        binlog_offset: BinlogOffset
        session_id: int
        def __init__(self, reply_code: _Optional[_Union[InnerResponse.TrySync.ReplyCode, str]] = ..., slot: _Optional[_Union[Slot, _Mapping]] = ..., binlog_offset: _Optional[_Union[BinlogOffset, _Mapping]] = ..., session_id: _Optional[int] = ...) -> None: ...
    class DBSync(_message.Message):
        __slots__ = ("slot", "session_id")
        SLOT_FIELD_NUMBER: _ClassVar[int]
        SESSION_ID_FIELD_NUMBER: _ClassVar[int]
        slot: Slot
        session_id: int
        def __init__(self, slot: _Optional[_Union[Slot, _Mapping]] = ..., session_id: _Optional[int] = ...) -> None: ...
    class BinlogSync(_message.Message):
        __slots__ = ("slot", "binlog_offset", "binlog", "session_id")
        SLOT_FIELD_NUMBER: _ClassVar[int]
        BINLOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
        BINLOG_FIELD_NUMBER: _ClassVar[int]
        SESSION_ID_FIELD_NUMBER: _ClassVar[int]
        slot: Slot
        binlog_offset: BinlogOffset
        binlog: bytes
        session_id: int
        def __init__(self, slot: _Optional[_Union[Slot, _Mapping]] = ..., binlog_offset: _Optional[_Union[BinlogOffset, _Mapping]] = ..., binlog: _Optional[bytes] = ..., session_id: _Optional[int] = ...) -> None: ...
    class RemoveSlaveNode(_message.Message):
        __slots__ = ("node", "slot")
        NODE_FIELD_NUMBER: _ClassVar[int]
        SLOT_FIELD_NUMBER: _ClassVar[int]
        node: Node
        slot: Slot
        def __init__(self, node: _Optional[_Union[Node, _Mapping]] = ..., slot: _Optional[_Union[Slot, _Mapping]] = ...) -> None: ...
    TYPE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    META_SYNC_FIELD_NUMBER: _ClassVar[int]
    DB_SYNC_FIELD_NUMBER: _ClassVar[int]
    TRY_SYNC_FIELD_NUMBER: _ClassVar[int]
    BINLOG_SYNC_FIELD_NUMBER: _ClassVar[int]
    REMOVE_SLAVE_NODE_FIELD_NUMBER: _ClassVar[int]
    type: Type
    code: StatusCode
    reply: str
    meta_sync: InnerResponse.MetaSync
    db_sync: InnerResponse.DBSync
    try_sync: InnerResponse.TrySync
    binlog_sync: _containers.RepeatedCompositeFieldContainer[InnerResponse.BinlogSync]
    remove_slave_node: _containers.RepeatedCompositeFieldContainer[InnerResponse.RemoveSlaveNode]
    def __init__(self, type: _Optional[_Union[Type, str]] = ..., code: _Optional[_Union[StatusCode, str]] = ..., reply: _Optional[str] = ..., meta_sync: _Optional[_Union[InnerResponse.MetaSync, _Mapping]] = ..., db_sync: _Optional[_Union[InnerResponse.DBSync, _Mapping]] = ..., try_sync: _Optional[_Union[InnerResponse.TrySync, _Mapping]] = ..., binlog_sync: _Optional[_Iterable[_Union[InnerResponse.BinlogSync, _Mapping]]] = ..., remove_slave_node: _Optional[_Iterable[_Union[InnerResponse.RemoveSlaveNode, _Mapping]]] = ...) -> None: ...
