"""The members of one group: who they are, which of them leads, what they have in common.

* A member with an instance id is static: its instance id names exactly one member id, and outlives its process.
* A pending member has been given an id and has not come back with it. It is no member yet.
* If there are members, one of them leads, and there is a protocol that all of them support. Whoever adds or changes a
  member has asked `supports` first; that keeps it so.
* Order is the order of joining, so the same events give the same leader and the same choice.

Cost: lookups O(1); choosing a protocol or asking whether all have joined O(members).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Set

from tidelog.groups.journal import MemberImage
from tidelog.groups.messages import JoinReply, JoinRequest, Protocol, SyncReply


class Member:
    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "join_reply",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_deadline_ms",
        "session_timeout_ms",
        "sync_reply",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocols: tuple[Protocol, ...],
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.protocols = protocols
        self.assignment = assignment

        self.is_new = False
        """It has had no answer to its first join yet, so it may not know its id and cannot send heartbeats."""
        self.session_deadline_ms = 0
        self.join_reply: JoinReply | None = None
        """Not None while it waits for a rebalance to complete."""
        self.sync_reply: SyncReply | None = None
        """Not None while it waits for its assignment."""

    @staticmethod
    def joining(request: JoinRequest, member_id: str, reply: JoinReply) -> "Member":
        member = Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocols,
        )
        member.join_reply = reply
        return member

    @staticmethod
    def restored(image: MemberImage, protocol_name: str | None) -> "Member":
        """As the journal knows it: of its protocols, only the one that was chosen."""
        return Member(
            image.member_id,
            image.instance_id,
            image.client_id,
            image.client_host,
            image.session_timeout_ms,
            image.rebalance_timeout_ms,
            (Protocol(protocol_name or "", image.metadata),),
            image.assignment,
        )

    @property
    def may_be_silent(self) -> bool:
        """While a member waits for us, its silence says nothing. A new one may have gone away, so it may not."""
        return not self.is_new and (self.join_reply is not None or self.sync_reply is not None)

    def metadata(self, protocol_name: str | None) -> bytes:
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        return b""

    def vote(self, candidates: Set[str]) -> str:
        return next(protocol.name for protocol in self.protocols if protocol.name in candidates)


class Roster:
    __slots__ = ("_members", "_static", "_support", "leader_id", "pending")

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._static: dict[str, str] = {}
        """Instance id -> member id."""
        self._support: Counter[str] = Counter()
        """Protocol name -> how many members support it."""
        self.leader_id: str | None = None
        self.pending: dict[str, int] = {}
        """Member id -> when it lapses."""

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def get(self, member_id: str) -> Member | None:
        return self._members.get(member_id)

    def static_id(self, instance_id: str | None) -> str | None:
        """The id of the member that now goes by this instance id."""
        return None if instance_id is None else self._static.get(instance_id)

    @property
    def static_count(self) -> int:
        return len(self._static)

    @property
    def rebalance_timeout_ms(self) -> int:
        """As long as the slowest member asks for."""
        return max((member.rebalance_timeout_ms for member in self), default=0)

    @property
    def all_joined(self) -> bool:
        return not self.pending and all(member.join_reply is not None for member in self)

    @property
    def joined_count(self) -> int:
        return sum(1 for member in self if member.join_reply is not None)

    def add(self, member: Member) -> None:
        self._members[member.member_id] = member
        self._support.update(protocol.name for protocol in member.protocols)
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.pending.pop(member.member_id, None)

    def remove(self, member_id: str) -> None:
        member = self._members.pop(member_id)
        self._support.subtract(protocol.name for protocol in member.protocols)
        if member.instance_id is not None:
            del self._static[member.instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self._members), None)

    def replace(self, old: Member, new: Member) -> None:
        """A static member under a new id. It leads if the old one did."""
        led = self.leader_id == old.member_id
        self.remove(old.member_id)
        self.add(new)
        if led:
            self.leader_id = new.member_id

    def change_protocols(self, member: Member, protocols: tuple[Protocol, ...]) -> None:
        self._support.subtract(protocol.name for protocol in member.protocols)
        member.protocols = protocols
        self._support.update(protocol.name for protocol in protocols)

    def elect_joined_leader(self) -> bool:
        """Have a leader that has joined; says whether there is one."""
        leader = self._members.get(self.leader_id) if self.leader_id is not None else None
        if leader is not None and leader.join_reply is not None:
            return True
        for member in self:
            if member.join_reply is not None:
                self.leader_id = member.member_id
                return True
        return False

    def supports(self, names: Iterable[str]) -> bool:
        """Whether one of these protocols is supported by every member."""
        return any(self._support[name] == len(self._members) for name in names)

    def select_protocol(self) -> str:
        """Each member votes for its favourite among those that all support. A tie goes to the one voted for first."""
        candidates = {name for name, count in self._support.items() if count == len(self._members)}
        return Counter(member.vote(candidates) for member in self).most_common(1)[0][0]
